"""Signals that the kernel sends to processes of this machine, as it sends them."""
