"""The buying side: peers, quotes, purchases, borrowed contracts."""
