"""The mesh of a cloud: which nodes are linked, and by which of them packets go."""
