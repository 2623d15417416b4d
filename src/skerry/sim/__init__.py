"""The simulator: the real control plane, with nodes that only pretend. See docs/sim.md."""
