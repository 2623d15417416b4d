"""Instances: their records, transitions and reports."""
