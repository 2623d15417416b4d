"""Policies: where a call runs, one module each. `loading` finds them by name."""
