"""Images on a node: references, sources, storage and garbage collection."""
