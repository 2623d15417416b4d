"""The mesh over HTTP."""
