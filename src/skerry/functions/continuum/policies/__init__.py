"""Policies: where a call runs, one module each. `choosing` finds them by name."""
