"""Skerry as a service of this machine: units of systemd, their settings, and their removal."""
