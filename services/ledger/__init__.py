"""The ledger: runs, what they spent, prices and caps."""
