"""How containers reach others: a bridge, namespaces made ahead, addresses, published ports, name servers.

`network.Network` is the door; the rest is its parts. Links are made with iproute2 and rules with nft, each a
process for many commands at once.
"""
