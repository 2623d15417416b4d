"""What executables print, kept on disk in bounded rings: written by a cell's init, read by the agent."""
