-- On a table without statistics every index that begins with the organization seems to cost the same,
-- and the server takes the one made last. Keys are made last (ADR 0040).
ALTER TABLE run DROP CONSTRAINT pk_run, ADD CONSTRAINT pk_run PRIMARY KEY (org, run_id);
ALTER TABLE hold DROP CONSTRAINT pk_hold, ADD CONSTRAINT pk_hold PRIMARY KEY (org, request_id);
