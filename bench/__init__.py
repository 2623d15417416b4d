"""Measures each promise of docs/specification.md as a ratio, in one run on one machine."""
