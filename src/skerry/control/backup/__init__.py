"""Backups of a cloud: one file with the store, the identity, the code of functions and async results."""
