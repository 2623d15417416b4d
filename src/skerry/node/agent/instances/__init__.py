"""Instances on a node: stores the orders of the control plane and drives containers towards them."""
