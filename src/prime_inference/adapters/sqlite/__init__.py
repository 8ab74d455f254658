"""Ports over SQLite files in the state folder."""
