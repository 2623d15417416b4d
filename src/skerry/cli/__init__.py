"""What a person types: one module per group of verbs, imported only when its verb is called."""
