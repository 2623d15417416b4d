"""Transport: HTTP, gRPC, WebSockets, links between nodes, and access.

Servers, clients, limits and the access gate. It knows no dialect: those are in `skerry.wire`.
"""
