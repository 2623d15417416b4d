"""Serverledge: functions over HTTP, as its document and its program have them."""
