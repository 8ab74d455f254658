"""Statements and tables that SQLite and Postgres share."""
