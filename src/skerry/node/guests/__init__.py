"""Cells that are lent: room that a stranger bought, and the node that it finds in there."""
