-- Teams, keys, prices, limits, and who changed them (docs/billing.md).
-- Times in seconds since the epoch as DOUBLE PRECISION; sets as JSON lists.

CREATE TABLE tenant (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind IN ('team', 'person')),
    name TEXT NOT NULL,
    slug TEXT NOT NULL UNIQUE,
    created_at DOUBLE PRECISION NOT NULL
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
    digest BYTEA NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    name TEXT NOT NULL,
    last_four TEXT NOT NULL,
    expires_at DOUBLE PRECISION,
    revoked_at DOUBLE PRECISION,
    previous_digest BYTEA,
    previous_until DOUBLE PRECISION NOT NULL,
    models TEXT NOT NULL,
    routes TEXT NOT NULL,
    networks TEXT NOT NULL
);
CREATE INDEX api_key_tenant ON api_key (tenant);

CREATE TABLE price (
    model TEXT NOT NULL,
    version BIGINT NOT NULL,
    effective_from DOUBLE PRECISION NOT NULL,
    prompt BIGINT NOT NULL,
    cached_prompt BIGINT NOT NULL,
    completion BIGINT NOT NULL,
    reasoning BIGINT NOT NULL,
    request BIGINT NOT NULL,
    batch_discount BIGINT NOT NULL,
    PRIMARY KEY (model, version)
);

CREATE TABLE usage_limit (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    most BIGINT NOT NULL,
    key_id TEXT,
    tenant TEXT,
    model TEXT
);

CREATE TABLE revision (value BIGINT NOT NULL);
INSERT INTO revision VALUES (0);

CREATE TABLE audit (
    place BIGINT PRIMARY KEY,
    at BIGINT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail TEXT NOT NULL,
    previous TEXT NOT NULL,
    hash TEXT NOT NULL
);

CREATE TRIGGER price_stands BEFORE UPDATE OR DELETE ON price
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER price_is_kept BEFORE TRUNCATE ON price
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
ALTER TABLE price ENABLE ALWAYS TRIGGER price_stands;
ALTER TABLE price ENABLE ALWAYS TRIGGER price_is_kept;

CREATE TRIGGER audit_stands BEFORE UPDATE OR DELETE ON audit
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER audit_is_kept BEFORE TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
ALTER TABLE audit ENABLE ALWAYS TRIGGER audit_stands;
ALTER TABLE audit ENABLE ALWAYS TRIGGER audit_is_kept;
