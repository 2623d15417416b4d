"""REAR: offers of capacity, holds and contracts, as its document and its public program spell them."""
