"""Health checks of instances on this node: what is asked, when, and what the answers mean."""
