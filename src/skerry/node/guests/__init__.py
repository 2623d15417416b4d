"""Leased cells: resources that another cloud bought, and the guest agent that it uses them through."""
