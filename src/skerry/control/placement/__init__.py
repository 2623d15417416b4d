"""Placement: which node an instance runs on, decided and applied."""
