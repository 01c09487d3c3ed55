"""The HTTP API: one module per resource, `application.py` puts them together."""
