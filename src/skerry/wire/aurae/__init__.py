"""Aurae's contracts over the cells of this node: the document's packages `runtime`, `observe` and `schedule`,
and the present ones, `aurae.cells.v0`, `aurae.observe.v0` and `aurae.discovery.v0`."""
