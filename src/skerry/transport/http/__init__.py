"""HTTP: the server, what stands in front of every route, and typed endpoints."""
