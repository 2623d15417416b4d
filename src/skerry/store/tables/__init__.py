"""What is built on a store: cached prefixes, leased keys, sorted maps."""
