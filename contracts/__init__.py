"""The wire of Rienda: events, questions, their types and errors; imports pydantic only."""
