"""Offers searchable by selector."""
