"""Functions: their registry, the pool of their workers, and the way of a call."""
