"""A node of an ordinary user: its user namespace, and what it can enforce there."""
