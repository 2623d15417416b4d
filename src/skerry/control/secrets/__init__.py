"""Secrets, configs and registry logins: sealed in the store, delivered to the nodes that use them."""
