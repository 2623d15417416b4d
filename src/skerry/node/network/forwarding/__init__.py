"""Published ports of a node of an ordinary user: a process that forwards them, and the agent's view of it."""
