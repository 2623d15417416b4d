"""Ends of tunnels to instances, for logs, programs and sessions of guests: frames, and what carries them."""
