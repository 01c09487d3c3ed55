"""What the ledger hears: one `on_<event>` per event; load, decide, save."""
