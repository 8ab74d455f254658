-- Whether an event's tokens were estimated: its engine reported none (docs/billing.md).
ALTER TABLE usage_event ADD COLUMN estimated INTEGER NOT NULL DEFAULT 0;
