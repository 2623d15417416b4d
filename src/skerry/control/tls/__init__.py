"""TLS certificates of routes: imported, ordered by ACME, or of the cloud's own CA."""
