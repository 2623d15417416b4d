"""Servers and members of this cloud: who is there and how to reach them."""
