"""How bytes come and go: HTTP, gRPC, WebSockets, links between nodes, and who may use what.

Servers, clients, limits and the access gate. Knows no dialect: what is said over it is the business of
`skerry.wire`.
"""
