"""Metrics of servers and nodes over HTTP."""
