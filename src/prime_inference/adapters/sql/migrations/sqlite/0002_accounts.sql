-- Teams, keys, prices, limits, and who changed them (docs/billing.md).
-- Times in seconds since the epoch as REAL; sets as JSON lists.

CREATE TABLE tenant (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind IN ('team', 'person')),
    name TEXT NOT NULL,
    slug TEXT NOT NULL UNIQUE,
    created_at REAL NOT NULL
);

CREATE TABLE member (
    team TEXT NOT NULL REFERENCES tenant,
    person TEXT NOT NULL REFERENCES tenant,
    role TEXT NOT NULL,
    PRIMARY KEY (team, person)
);

CREATE TABLE api_key (
    key_id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL REFERENCES tenant,
    digest BLOB NOT NULL,
    created_at REAL NOT NULL,
    name TEXT NOT NULL,
    last_four TEXT NOT NULL,
    expires_at REAL,
    revoked_at REAL,
    previous_digest BLOB,
    previous_until REAL NOT NULL,
    models TEXT NOT NULL,
    routes TEXT NOT NULL,
    networks TEXT NOT NULL
);
CREATE INDEX api_key_tenant ON api_key (tenant);

CREATE TABLE price (
    model TEXT NOT NULL,
    version INTEGER NOT NULL,
    effective_from REAL NOT NULL,
    prompt INTEGER NOT NULL,
    cached_prompt INTEGER NOT NULL,
    completion INTEGER NOT NULL,
    reasoning INTEGER NOT NULL,
    request INTEGER NOT NULL,
    batch_discount INTEGER NOT NULL,
    PRIMARY KEY (model, version)
);

CREATE TABLE usage_limit (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    most INTEGER NOT NULL,
    key_id TEXT,
    tenant TEXT,
    model TEXT
);

CREATE TABLE revision (value INTEGER NOT NULL);
INSERT INTO revision VALUES (0);

CREATE TABLE audit (
    place INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail TEXT NOT NULL,
    previous TEXT NOT NULL,
    hash TEXT NOT NULL
);

CREATE TRIGGER price_is_kept BEFORE DELETE ON price
BEGIN SELECT RAISE(ABORT, 'price takes inserts only'); END;
CREATE TRIGGER price_stands BEFORE UPDATE ON price
BEGIN SELECT RAISE(ABORT, 'price takes inserts only'); END;
CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'audit takes inserts only'); END;
CREATE TRIGGER audit_stands BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'audit takes inserts only'); END;
