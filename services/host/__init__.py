"""What runs the rooms: data directory, embedded servers, supervisor, commands."""
