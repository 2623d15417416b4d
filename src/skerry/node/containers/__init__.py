"""Containers of this node: images run by an OCI runtime, each in a cell of its own."""
