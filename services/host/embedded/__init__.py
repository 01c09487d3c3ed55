"""Real PostgreSQL and nats-server from the wheels in the virtual environment, run as children."""
