-- Slots of models that teams have for themselves (docs/reservations.md).
-- Times in seconds since the epoch as DOUBLE PRECISION; money in nanodollars; datacenters as a JSON list.

CREATE TABLE reservation (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL REFERENCES tenant,
    model TEXT NOT NULL,
    slots BIGINT NOT NULL CHECK (slots > 0),
    starts_at DOUBLE PRECISION NOT NULL,
    price BIGINT NOT NULL CHECK (price >= 0),
    period TEXT NOT NULL CHECK (period IN ('hour', 'month')),
    created_at DOUBLE PRECISION NOT NULL,
    datacenters TEXT NOT NULL,
    ends_at DOUBLE PRECISION,
    spill BIGINT NOT NULL,
    token_discount BIGINT NOT NULL
);
