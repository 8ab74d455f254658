-- Slots of models that teams have for themselves (docs/reservations.md).
-- Times in seconds since the epoch as REAL; money in nanodollars; datacenters as a JSON list.

CREATE TABLE reservation (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL REFERENCES tenant,
    model TEXT NOT NULL,
    slots INTEGER NOT NULL CHECK (slots > 0),
    starts_at REAL NOT NULL,
    price INTEGER NOT NULL CHECK (price >= 0),
    period TEXT NOT NULL CHECK (period IN ('hour', 'month')),
    created_at REAL NOT NULL,
    datacenters TEXT NOT NULL,
    ends_at REAL,
    spill INTEGER NOT NULL,
    token_discount INTEGER NOT NULL
);
