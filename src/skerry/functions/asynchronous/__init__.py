"""Asynchronous calls and their results."""
