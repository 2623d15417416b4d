"""Calls to the Linux kernel: system calls, namespaces, mount tables. Imported by child processes: standard
library only."""
