"""The selling side: offers, ledger, catalog, contract cells."""
