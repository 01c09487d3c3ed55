"""Not run: `shared.migrate` sets the environment for every room alike."""
