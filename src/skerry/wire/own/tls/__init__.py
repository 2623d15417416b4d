"""TLS certificates of routes over HTTP."""
