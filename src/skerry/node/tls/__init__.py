"""TLS certificates on an edge node."""
