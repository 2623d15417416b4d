"""The key space in memory that the memory and SQLite stores share."""
