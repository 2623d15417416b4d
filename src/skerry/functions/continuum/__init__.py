"""The continuum: many nodes in areas, each of which decides by itself where a call runs.

The decisions are pure: the state of other nodes, measurements, and where a call should run. See
docs/continuum.md.
"""
