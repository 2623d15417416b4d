"""Skerry's own routes: health, what this server is, events, tokens, certificates, joining."""
