"""Values of secrets and configs on a node: requested from the server, kept in memory only."""
