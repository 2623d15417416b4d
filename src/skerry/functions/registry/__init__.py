"""Registered functions and their code."""
