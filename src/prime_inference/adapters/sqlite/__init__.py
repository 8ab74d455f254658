"""Stores in files of the state folder, with the `sqlite3` that comes with Python."""
