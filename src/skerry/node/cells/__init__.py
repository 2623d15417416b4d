"""Cells and executables of this node: create, run, stop, free, and adopt after a restart of the agent."""
