"""Instances on a node: orders of the control plane kept on disk, and containers driven toward them."""
