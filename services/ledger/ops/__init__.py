"""The ledger's operator commands."""
