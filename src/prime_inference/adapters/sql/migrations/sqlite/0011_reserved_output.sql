-- Output tokens per second that a reservation's slots may give; NULL: as many as they write.
ALTER TABLE reservation ADD COLUMN tokens_per_second INTEGER CHECK (tokens_per_second > 0);
