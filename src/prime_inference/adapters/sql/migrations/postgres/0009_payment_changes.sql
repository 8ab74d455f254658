-- How often a tenant's payment was changed: a wallet's counter begins anew with each, from the
-- ledger, for it does not count while the tenant is invoiced.
ALTER TABLE tenant ADD COLUMN payment_changes BIGINT NOT NULL DEFAULT 0;
