"""The steps of the demo, one module each."""
