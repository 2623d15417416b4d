"""Kudo's documents, served: REST over HTTP, and the three gRPC services."""
