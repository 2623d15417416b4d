"""Logs of executables, in bounded rings on disk: written by a cell's init, read by the agent."""
