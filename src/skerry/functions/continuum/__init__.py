"""The continuum: many nodes in areas, each of which decides by itself where a call runs.

All of it is pure: what is known of other nodes, what was measured, and where a call should go. Who asks for
it, and the wires between nodes, are elsewhere. See docs/continuum.md.
"""
