"""The gateway: the HTTP API and the directory (organizations, agents, channels, API keys)."""
