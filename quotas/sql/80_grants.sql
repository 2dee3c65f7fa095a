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

-- What a tenant was charged in months whose rows have left the ledger, by day: from their seals, which stay.
create or replace function quotas.retired_charges(wanted_tenant text, wanted_currency text)
returns table (local_date date, feature text, model text, charge_amount numeric, unpriced_count bigint)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select l.local_date, l.feature, l.model, sum(l.charge_amount), sum(l.charge_unpriced_count)::bigint
    from ledger.retired_months as m
    join ledger.periods as p on p.posting_period = m.posting_period
    join ledger.seal_lines as l
        on l.tenant_id = p.tenant_id and l.posting_period = p.posting_period and l.close_number = p.close_number
    where not m.is_readable and p.tenant_id = wanted_tenant and l.charge_currency = wanted_currency
    group by l.local_date, l.feature, l.model
$$;
revoke all on function quotas.retired_charges(text, text) from public;
grant execute on function quotas.retired_charges(text, text) to tallystick_api, tallystick_operator;
