"""Volumes over HTTP."""
