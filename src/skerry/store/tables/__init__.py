"""What is built on a store: tables of records, leased keys, sorted maps."""
