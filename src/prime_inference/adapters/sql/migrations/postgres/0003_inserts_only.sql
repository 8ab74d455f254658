-- Nothing that takes inserts only can be replaced: Postgres asks the UPDATE triggers also where
-- an insert turns into an update, so there is nothing to add. SQLite needs more of them.
SELECT 1;
