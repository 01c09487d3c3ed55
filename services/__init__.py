"""The rooms, the channels and the host."""
