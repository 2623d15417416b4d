"""Desired state, and what is done to reach it: identity, events, and the controllers."""
