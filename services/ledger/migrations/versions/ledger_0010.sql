-- On a table without statistics, or with those of when it was small, every index that begins with the
-- organization seems to find one row, and the server takes any of them. Where something is found by a
-- key of its own, the key comes first; of what still costs the same the newest is taken (ADR 0040).
DROP INDEX ix_run_root;
CREATE INDEX ix_run_root ON run (root_run_id, org);
ALTER TABLE run DROP CONSTRAINT pk_run, ADD CONSTRAINT pk_run PRIMARY KEY (run_id, org);
ALTER TABLE hold DROP CONSTRAINT pk_hold, ADD CONSTRAINT pk_hold PRIMARY KEY (request_id, org);
