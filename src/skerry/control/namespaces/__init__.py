"""Namespaces: their records, what they use, and the admission of transactions under their quotas."""
