"""Namespaces and their quotas over HTTP."""
