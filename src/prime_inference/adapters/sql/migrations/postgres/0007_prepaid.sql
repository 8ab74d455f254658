-- Whether a tenant pays afterwards, or is refused what its wallet does not hold.
ALTER TABLE tenant ADD COLUMN payment TEXT NOT NULL DEFAULT 'invoiced'
    CHECK (payment IN ('invoiced', 'prepaid'));
