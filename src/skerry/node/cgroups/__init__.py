"""Cgroups of cells: enforce the limits of a cell, and list, freeze and kill its processes.

`protocol` is the interface; `detection.detect` chooses and creates the backend for this machine.
"""
