"""Tunnels to instances: logs, programs and sessions of guests."""
