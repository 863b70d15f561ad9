"""Runs that are killed, and proof that nothing is lost; see README.md."""
