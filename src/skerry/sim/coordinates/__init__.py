"""Network coordinates over simulated latencies."""
