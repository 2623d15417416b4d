"""A small cloud on one machine or many. See docs/architecture.md for the packages."""

__version__ = "0.2.0"
