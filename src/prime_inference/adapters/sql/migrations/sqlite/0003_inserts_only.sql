-- Nothing that takes inserts only can be replaced (docs/billing.md, "The ledger").
-- INSERT OR REPLACE deletes the row that is in the way without asking DELETE triggers, unless
-- recursive_triggers is on; what is in the way may be the primary key's row or, where that is
-- not the rowid itself, the rowid's. A row that is there already is left alone, as ON CONFLICT
-- DO NOTHING does. Before an insert a rowid that was not given reads as -1: so no row may have
-- one below 1, or it could be replaced unseen.

DROP TRIGGER batch_is_not_replaced;
DROP TRIGGER usage_event_is_not_replaced;
DROP TRIGGER transfer_is_not_replaced;

CREATE TRIGGER batch_is_not_replaced BEFORE INSERT ON batch
WHEN EXISTS (SELECT 1 FROM batch WHERE id = NEW.id)
BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER batch_has_a_place AFTER INSERT ON batch WHEN NEW.rowid < 1
BEGIN SELECT RAISE(ABORT, 'batch takes no rowid below 1'); END;

CREATE TRIGGER usage_event_is_not_replaced BEFORE INSERT ON usage_event
WHEN EXISTS (
    SELECT 1 FROM usage_event
    WHERE tenant = NEW.tenant AND generation = NEW.generation AND kind = NEW.kind
) OR EXISTS (SELECT 1 FROM usage_event WHERE rowid = NEW.rowid)
BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER usage_event_has_a_place AFTER INSERT ON usage_event WHEN NEW.rowid < 1
BEGIN SELECT RAISE(ABORT, 'usage_event takes no rowid below 1'); END;

CREATE TRIGGER transfer_is_not_replaced BEFORE INSERT ON transfer
WHEN EXISTS (
    SELECT 1 FROM transfer
    WHERE tenant = NEW.tenant AND reference = NEW.reference AND kind = NEW.kind
) OR EXISTS (SELECT 1 FROM transfer WHERE rowid = NEW.rowid)
BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER transfer_has_a_place AFTER INSERT ON transfer WHEN NEW.rowid < 1
BEGIN SELECT RAISE(ABORT, 'transfer takes no rowid below 1'); END;

CREATE TRIGGER price_is_not_replaced BEFORE INSERT ON price
WHEN EXISTS (SELECT 1 FROM price WHERE model = NEW.model AND version = NEW.version)
    OR EXISTS (SELECT 1 FROM price WHERE rowid = NEW.rowid)
BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER price_has_a_place AFTER INSERT ON price WHEN NEW.rowid < 1
BEGIN SELECT RAISE(ABORT, 'price takes no rowid below 1'); END;

CREATE TRIGGER audit_is_not_replaced BEFORE INSERT ON audit
WHEN EXISTS (SELECT 1 FROM audit WHERE place = NEW.place)
BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER audit_has_a_place AFTER INSERT ON audit WHEN NEW.rowid < 1
BEGIN SELECT RAISE(ABORT, 'audit takes no rowid below 1'); END;
