"""Simulated sites and calls: where the policies of the continuum would run functions."""
