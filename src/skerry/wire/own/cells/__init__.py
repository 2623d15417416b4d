"""Skerry's own contract for the cells of a node: package `skerry.cells.v1`."""
