"""The floor under every room: bus, outbox, inbox, database, clock, log; no business noun."""
