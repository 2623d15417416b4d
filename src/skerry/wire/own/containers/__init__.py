"""Skerry's own contract for the images and containers of a node: package `skerry.containers.v1`."""
