"""The network of containers: a bridge, prestarted namespaces, addresses, published ports, name servers.

`network.Network` is the entry point. Links are managed with iproute2 and rules with nft, each run with many
commands at once.
"""
