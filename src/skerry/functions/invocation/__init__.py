"""Calls: the queue, the worker pool, dispatching and metrics."""
