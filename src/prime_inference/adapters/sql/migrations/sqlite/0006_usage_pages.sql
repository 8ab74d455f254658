-- What pages and budgets ask that no index answered: a key's use whoever pays (GET /key, a key's
-- spend cap), everybody's use of some days, and what a tenant has paid in a month.

CREATE INDEX usage_day_key ON usage_day (key_id, day);
CREATE INDEX usage_day_day ON usage_day (day);
CREATE INDEX transfer_payment ON transfer (tenant, at) WHERE kind <> 'usage';
