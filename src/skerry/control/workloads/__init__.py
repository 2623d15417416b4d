"""Workloads and their rollouts."""
