"""System calls, namespaces and mounts of Linux. Imported by child processes: standard library only."""
