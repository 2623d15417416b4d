"""Signals that the kernel sends to processes of this machine, observed by tracing."""
