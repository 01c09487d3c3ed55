"""Transcripts of a coding assistant as runs and usage (the importer's rules: see the README)."""
