"""The nouns: frozen data with validation, the state machine as data, and the error tree."""
