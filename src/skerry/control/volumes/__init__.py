"""Volumes: their records, requests of people, and reports of nodes."""
