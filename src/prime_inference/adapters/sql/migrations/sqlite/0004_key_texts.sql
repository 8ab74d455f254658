-- Every earlier text of a key with its own end: a JSON list of [SHA-256 in hex, seconds since the
-- epoch, last four characters].

ALTER TABLE api_key ADD COLUMN earlier TEXT NOT NULL DEFAULT '[]';
UPDATE api_key
SET earlier = '[["' || lower(hex(previous_digest)) || '",' || previous_until || ',""]]'
WHERE previous_digest IS NOT NULL;
ALTER TABLE api_key DROP COLUMN previous_digest;
ALTER TABLE api_key DROP COLUMN previous_until;
