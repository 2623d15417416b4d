"""Cgroups of cells: what holds a cell to its limits, and what knows, freezes and kills everything in it.

`protocol` is the one interface; `detection.detect` finds which back end this machine needs and makes it.
"""
