-- A sum that leaves 64 bits becomes a float in SQLite, and loses its last digits: what would make
-- one is refused, as Postgres does by itself (docs/billing.md, "Failure cases").

CREATE TRIGGER balance_is_whole AFTER UPDATE ON balance
WHEN typeof(NEW.amount) <> 'integer'
BEGIN SELECT RAISE(ABORT, 'a balance would leave 64 bits'); END;

CREATE TRIGGER usage_day_is_whole AFTER UPDATE ON usage_day
WHEN 'real' IN (
    typeof(NEW.prompt_tokens), typeof(NEW.cached_tokens), typeof(NEW.completion_tokens),
    typeof(NEW.reasoning_tokens), typeof(NEW.cost)
)
BEGIN SELECT RAISE(ABORT, 'sums of a day would leave 64 bits'); END;
