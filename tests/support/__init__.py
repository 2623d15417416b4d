"""What several tests share: waiting, leak checks, and real servers on loopback."""
