"""Keeps servers and rooms running: starts, watches, starts again, ends in reverse order."""
