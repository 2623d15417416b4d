"""Election of the server that decides."""
