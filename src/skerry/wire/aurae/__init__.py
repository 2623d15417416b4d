"""Aurae's contract: packages `runtime`, `observe` and `schedule` over the cells of this node."""
