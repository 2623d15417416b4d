"""Secrets, configs and registry logins over HTTP."""
