"""Snapshots of volumes, and the operations that make, restore and move their data."""
