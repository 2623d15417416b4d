"""Routes on an edge node: HAProxy, its configuration, and what it is told while it runs."""
