"""Alerts: rules of admins, what they observe, what fires, and who is notified."""
