"""gRPC: listeners, connections, calls, and the services that are Skerry's own."""
