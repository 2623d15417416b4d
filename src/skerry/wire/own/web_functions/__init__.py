"""Functions as web handlers: HTTP requests at `/web/`, for clients and for HAProxy."""
