"""Routes: their records, requests of people, and what edge nodes are told and report."""
