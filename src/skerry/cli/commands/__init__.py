"""The verbs, one module per group."""
