-- Grants and what happens to them are money: rows are added, never changed.
create or replace trigger refuse_change
before update or delete on quotas.grants
for each row execute function ledger.refuse_change();

create or replace trigger refuse_truncate
before truncate on quotas.grants
for each statement execute function ledger.refuse_change();

create or replace trigger refuse_change
before update or delete on quotas.grant_movements
for each row execute function ledger.refuse_change();

create or replace trigger refuse_truncate
before truncate on quotas.grant_movements
for each statement execute function ledger.refuse_change();

grant select on quotas.grants, quotas.grant_movements to tallystick_api, tallystick_operator, tallystick_analyst,
    tallystick_billing, tallystick_rollup;
grant insert on quotas.grants, quotas.grant_movements to tallystick_operator;
grant select on quotas.turns to tallystick_api, tallystick_operator, tallystick_analyst, tallystick_billing,
    tallystick_rollup;
grant insert, delete on quotas.turns to tallystick_operator;
grant usage on all sequences in schema quotas to tallystick_operator;
-- A prepaid budget that is topped up may be exhausted again.
grant delete on quotas.threshold_notes to tallystick_operator;
