"""The mesh on a node: the interface to other nodes, its routes and rules, and the state of its links."""
