"""Volumes of this node, their snapshots, and the copies that restore and move them."""
