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

-- When a tenant's clocks show a time of one of its days.
create or replace function quotas.local_instant(wanted_tenant text, day date, hour time) returns timestamptz
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select (day + hour) at time zone v.time_zone
    from ledger.tenant_versions as v
    where v.tenant_id = wanted_tenant
    order by v.first_day <= day desc, case when v.first_day <= day then v.effective_at end desc, v.effective_at
    limit 1
$$;

-- The months of a tenant that its seals tell as well as its rows would: closed ones, where no grant begins or ends within a day that
-- has usage. Of months whose rows have left the ledger there is nothing better.
create or replace function quotas.sealed_months(wanted_tenant text, turns timestamptz[]) returns setof date
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select p.posting_period
    from ledger.periods as p
    join ledger.seals as s
        on s.tenant_id = p.tenant_id and s.posting_period = p.posting_period and s.close_number = p.close_number
    where
        p.tenant_id = wanted_tenant
        and p.state = 'closed'
        and (
            exists (
                select
                from ledger.retired_months as m
                where m.posting_period = p.posting_period and not m.is_readable
            )
            or not exists (
                select
                from (
                    select distinct l.local_date
                    from ledger.seal_lines as l
                    where
                        l.tenant_id = p.tenant_id
                        and l.posting_period = p.posting_period
                        and l.close_number = p.close_number
                ) as d
                cross join unnest(turns) as t (at)
                where
                    t.at > quotas.local_instant(p.tenant_id, d.local_date, time '00:00')
                    and t.at < quotas.local_instant(p.tenant_id, d.local_date + 1, time '00:00')
            )
        )
$$;

-- What a tenant was charged in sealed months, by day; each day stands at its noon, which no other day has.
create or replace function quotas.sealed_charges(wanted_tenant text, wanted_currency text, months date[])
returns table (noon timestamptz, feature text, model text, charge_amount numeric, unpriced_count bigint)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select
        quotas.local_instant(wanted_tenant, l.local_date, time '12:00'),
        l.feature,
        l.model,
        sum(l.charge_amount),
        sum(l.charge_unpriced_count)::bigint
    from ledger.periods as p
    join ledger.seal_lines as l
        on l.tenant_id = p.tenant_id and l.posting_period = p.posting_period and l.close_number = p.close_number
    where p.tenant_id = wanted_tenant and p.posting_period = any (months) and l.charge_currency = wanted_currency
    group by l.local_date, l.feature, l.model
$$;

do $$
declare
    name text;
begin
    foreach name in array array['quotas.sealed_months', 'quotas.sealed_charges', 'quotas.local_instant']
    loop
        execute format('revoke all on function %s from public', name);
    end loop;
end
$$;
grant execute on function quotas.sealed_months, quotas.sealed_charges, quotas.local_instant to tallystick_api, tallystick_operator;
