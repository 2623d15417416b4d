"""After a restore of the store: what nodes claim, and what this cloud once ordered."""
