"""The ledger of offers, holds and contracts."""
