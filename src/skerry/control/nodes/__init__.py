"""Nodes: registration, liveness, conditions, subnets."""
