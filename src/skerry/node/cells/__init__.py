"""Cells and executables of this node: made, run, stopped, freed, and found again after a restart."""
