"""`skerry.nodes.v1`: a node's connection to the control plane; the server's half and the node's."""
