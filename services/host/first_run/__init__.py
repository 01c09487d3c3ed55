"""What a first start brings beside the rooms: credentials, sample sessions, a demonstration."""
