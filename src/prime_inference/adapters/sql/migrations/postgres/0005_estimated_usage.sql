-- Whether an event's tokens were estimated: its engine reported none (docs/billing.md).
ALTER TABLE usage_event ADD COLUMN estimated BOOLEAN NOT NULL DEFAULT false;
