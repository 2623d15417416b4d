"""Snapshots, restores and moves of volumes over HTTP."""
