"""The store on SQLite, for one machine; and the rows of async calls."""
