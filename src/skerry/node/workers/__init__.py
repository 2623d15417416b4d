"""Function workers: the programs in them, their protocols, and how they are created."""
