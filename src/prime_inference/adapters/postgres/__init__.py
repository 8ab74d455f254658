"""Stores in Postgres, over psycopg (the extra `postgres`)."""
