"""A simulated cluster: real control plane and decisions, pretended nodes, injected faults, checked
invariants."""
