"""The network of a cloud: what nodes are told of it, and what they report."""
