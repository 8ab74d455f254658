"""Stores in a file, with the `sqlite3` that comes with Python."""
