-- A sum that leaves 64 bits is refused: Postgres does so by itself. SQLite needs triggers.
SELECT 1;
