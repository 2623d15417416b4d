"""One module per page: its endpoints, what it reads, and pure functions that make its view."""
