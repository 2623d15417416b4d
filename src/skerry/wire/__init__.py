"""The outside contracts: translation only, no decisions."""
