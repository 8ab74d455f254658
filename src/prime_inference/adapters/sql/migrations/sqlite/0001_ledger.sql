-- Usage events, transfers and what is derived from them (docs/billing.md).
-- Money in nanodollars, times in microseconds since the epoch, days since the epoch.

CREATE TABLE batch (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    source TEXT NOT NULL,
    applied_at INTEGER NOT NULL
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
    streamed INTEGER NOT NULL,
    price_version INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL CHECK (prompt_tokens >= 0),
    cached_tokens INTEGER NOT NULL CHECK (cached_tokens >= 0),
    completion_tokens INTEGER NOT NULL CHECK (completion_tokens >= 0),
    reasoning_tokens INTEGER NOT NULL CHECK (reasoning_tokens >= 0),
    cost INTEGER NOT NULL CHECK (cost >= 0),
    at INTEGER NOT NULL,
    first_token_us INTEGER NOT NULL,
    duration_us INTEGER NOT NULL,
    batch INTEGER NOT NULL REFERENCES batch,
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
    amount INTEGER NOT NULL CHECK (amount >= 0),
    at INTEGER NOT NULL,
    about TEXT NOT NULL,
    memo TEXT NOT NULL,
    batch INTEGER NOT NULL REFERENCES batch,
    PRIMARY KEY (tenant, reference, kind)
);
CREATE INDEX transfer_batch ON transfer (batch);
CREATE INDEX transfer_time ON transfer (tenant, at);

CREATE TABLE balance (
    account TEXT PRIMARY KEY,
    amount INTEGER NOT NULL
);

CREATE TABLE usage_day (
    tenant TEXT NOT NULL,
    day INTEGER NOT NULL,
    key_id TEXT NOT NULL,
    model TEXT NOT NULL,
    pool TEXT NOT NULL,
    requests INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    cost INTEGER NOT NULL,
    PRIMARY KEY (tenant, day, key_id, model, pool)
) WITHOUT ROWID;
CREATE INDEX usage_day_model ON usage_day (model, day);

CREATE TRIGGER batch_is_kept BEFORE DELETE ON batch
BEGIN SELECT RAISE(ABORT, 'batch takes inserts only'); END;
CREATE TRIGGER batch_stands BEFORE UPDATE ON batch
BEGIN SELECT RAISE(ABORT, 'batch takes inserts only'); END;
CREATE TRIGGER usage_event_is_kept BEFORE DELETE ON usage_event
BEGIN SELECT RAISE(ABORT, 'usage_event takes inserts only'); END;
CREATE TRIGGER usage_event_stands BEFORE UPDATE ON usage_event
BEGIN SELECT RAISE(ABORT, 'usage_event takes inserts only'); END;
CREATE TRIGGER transfer_is_kept BEFORE DELETE ON transfer
BEGIN SELECT RAISE(ABORT, 'transfer takes inserts only'); END;
CREATE TRIGGER transfer_stands BEFORE UPDATE ON transfer
BEGIN SELECT RAISE(ABORT, 'transfer takes inserts only'); END;

-- INSERT OR REPLACE would delete a row without asking the triggers above
CREATE TRIGGER batch_is_not_replaced BEFORE INSERT ON batch
WHEN EXISTS (SELECT 1 FROM batch WHERE id = NEW.id)
BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER usage_event_is_not_replaced BEFORE INSERT ON usage_event
WHEN EXISTS (
    SELECT 1 FROM usage_event
    WHERE tenant = NEW.tenant AND generation = NEW.generation AND kind = NEW.kind
)
BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER transfer_is_not_replaced BEFORE INSERT ON transfer
WHEN EXISTS (
    SELECT 1 FROM transfer
    WHERE tenant = NEW.tenant AND reference = NEW.reference AND kind = NEW.kind
)
BEGIN SELECT RAISE(IGNORE); END;
