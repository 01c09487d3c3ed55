"""Every SQL statement of the ledger."""
