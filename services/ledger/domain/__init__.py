"""The ledger's rules, split by business noun; pure, and to be imported module by module."""
