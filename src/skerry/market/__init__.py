"""The market: offers of capacity, the ledger of holds and contracts on them, and who may speak for whom."""
