"""Every SQL statement of the gateway; the connection, so the transaction, is the caller's."""
