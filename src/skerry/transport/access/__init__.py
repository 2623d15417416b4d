"""Who may use what: roles, the gate, hosts and peers."""
