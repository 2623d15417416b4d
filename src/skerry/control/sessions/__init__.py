"""Sessions with nodes: orders and changes down, reports up, tunnels."""
