-- Usage events, transfers and what is derived from them (docs/billing.md).
-- Money in nanodollars, times in microseconds since the epoch, days since the epoch.

CREATE TABLE batch (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source TEXT NOT NULL,
    applied_at BIGINT NOT NULL
);

CREATE TABLE usage_event (
    tenant TEXT NOT NULL,
    generation TEXT NOT NULL,
    kind TEXT NOT NULL,
    key_id TEXT NOT NULL,
    model TEXT NOT NULL,
    deployment TEXT NOT NULL,
    pool TEXT NOT NULL,
    route TEXT NOT NULL,
    outcome TEXT NOT NULL,
    streamed BOOLEAN NOT NULL,
    price_version BIGINT NOT NULL,
    prompt_tokens BIGINT NOT NULL CHECK (prompt_tokens >= 0),
    cached_tokens BIGINT NOT NULL CHECK (cached_tokens >= 0),
    completion_tokens BIGINT NOT NULL CHECK (completion_tokens >= 0),
    reasoning_tokens BIGINT NOT NULL CHECK (reasoning_tokens >= 0),
    cost BIGINT NOT NULL CHECK (cost >= 0),
    at BIGINT NOT NULL,
    first_token_us BIGINT NOT NULL,
    duration_us BIGINT NOT NULL,
    batch BIGINT NOT NULL REFERENCES batch,
    PRIMARY KEY (tenant, generation, kind)
);
CREATE INDEX usage_event_batch ON usage_event (batch);
CREATE INDEX usage_event_time ON usage_event (tenant, at);

CREATE TABLE transfer (
    tenant TEXT NOT NULL,
    reference TEXT NOT NULL,
    kind TEXT NOT NULL,
    debit TEXT NOT NULL,
    credit TEXT NOT NULL CHECK (credit <> debit),
    amount BIGINT NOT NULL CHECK (amount >= 0),
    at BIGINT NOT NULL,
    about TEXT NOT NULL,
    memo TEXT NOT NULL,
    batch BIGINT NOT NULL REFERENCES batch,
    PRIMARY KEY (tenant, reference, kind)
);
CREATE INDEX transfer_batch ON transfer (batch);
CREATE INDEX transfer_time ON transfer (tenant, at);

CREATE TABLE balance (
    account TEXT PRIMARY KEY,
    amount BIGINT NOT NULL
);

CREATE TABLE usage_day (
    tenant TEXT NOT NULL,
    day BIGINT NOT NULL,
    key_id TEXT NOT NULL,
    model TEXT NOT NULL,
    pool TEXT NOT NULL,
    requests BIGINT NOT NULL,
    prompt_tokens BIGINT NOT NULL,
    cached_tokens BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    reasoning_tokens BIGINT NOT NULL,
    cost BIGINT NOT NULL,
    PRIMARY KEY (tenant, day, key_id, model, pool)
);
CREATE INDEX usage_day_model ON usage_day (model, day);

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% takes inserts only', TG_TABLE_NAME;
END $$;

CREATE TRIGGER batch_stands BEFORE UPDATE OR DELETE ON batch
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER batch_is_kept BEFORE TRUNCATE ON batch
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
ALTER TABLE batch ENABLE ALWAYS TRIGGER batch_stands;
ALTER TABLE batch ENABLE ALWAYS TRIGGER batch_is_kept;

CREATE TRIGGER usage_event_stands BEFORE UPDATE OR DELETE ON usage_event
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER usage_event_is_kept BEFORE TRUNCATE ON usage_event
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
ALTER TABLE usage_event ENABLE ALWAYS TRIGGER usage_event_stands;
ALTER TABLE usage_event ENABLE ALWAYS TRIGGER usage_event_is_kept;

CREATE TRIGGER transfer_stands BEFORE UPDATE OR DELETE ON transfer
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER transfer_is_kept BEFORE TRUNCATE ON transfer
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
ALTER TABLE transfer ENABLE ALWAYS TRIGGER transfer_stands;
ALTER TABLE transfer ENABLE ALWAYS TRIGGER transfer_is_kept;
