"""Containers of this node: images that an OCI runtime runs, each in a cell of its own."""
