"""Routes over HTTP: `/route/`."""
