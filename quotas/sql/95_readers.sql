-- What a tenant's reader sees of its budgets: as ledger/sql/40_views.sql says of the rows of its own there, with the owner's
-- rights behind a barrier, sifted by login. Budgets over several tenants that have one window for all are not in it.
create or replace view quotas.own_windows
with (security_barrier = true)
as
select
    w.budget_id || '' as budget_id,
    w.tenant_id || '' as tenant_id,
    w.group_key || '' as group_key,
    w.window_start,
    b.unit || '' as unit,
    w.currency::text || '' as currency,
    b.window_kind || '' as window_kind,
    b.hardness || '' as hardness,
    -- A group may have a limit of its own, so only the budget's one window has the budget's.
    case when b.group_by = '{}' then b.limit_amount + 0 end as limit_amount,
    w.posted + 0 as posted,
    w.held + 0 as held,
    w.unpriced_count + 0 as unpriced_count
from quotas.windows as w
join quotas.budgets as b on b.budget_id = w.budget_id
where
    w.tenant_id in (select r.tenant_id from ledger.reader_tenants as r where r.login = session_user)
    -- The cost book is what we owe a provider.
    and b.unit <> 'cost';

comment on view quotas.own_windows is 'One row per budget, group and window of the login''s tenants; budgets of what providers cost are not in it.';
comment on column quotas.own_windows.budget_id is 'The budget.';
comment on column quotas.own_windows.tenant_id is 'Whose window it is: always a tenant of the login.';
comment on column quotas.own_windows.group_key is 'JSON array of the values that the budget is grouped by; empty without any.';
comment on column quotas.own_windows.window_start is 'Its first local day, in the tenant''s zone.';
comment on column quotas.own_windows.unit is 'charge, tokens of some kind, or requests.';
comment on column quotas.own_windows.currency is 'Of money; null for tokens and requests.';
comment on column quotas.own_windows.window_kind is 'day, days, week, month, anchored_month or lifetime.';
comment on column quotas.own_windows.hardness is 'hard: refuses; soft: warns; shadow: only counts.';
comment on column quotas.own_windows.limit_amount is 'Of a budget without groups; null does not limit, or is the group''s own.';
comment on column quotas.own_windows.posted is 'What was used, moved by the insert into the ledger itself.';
comment on column quotas.own_windows.held is 'Promised by reservations and not yet used.';
comment on column quotas.own_windows.unpriced_count is 'Requests in scope without an amount or count.';

-- Postgres opens each new function to everybody; a reader has no use for any. The others keep what they had.
do $$
declare
    open_to_all regprocedure;
begin
    for open_to_all in
        select p.oid::regprocedure
        from pg_proc as p
        where
            p.pronamespace = 'quotas'::regnamespace
            and p.prorettype <> 'trigger'::regtype
            and exists (
                select
                from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a
                where a.grantee = 0
            )
    loop
        execute format(
            'grant execute on function %s to tallystick_writer, tallystick_api, tallystick_operator, tallystick_analyst,'
            ' tallystick_billing, tallystick_rollup',
            open_to_all
        );
        execute format('revoke execute on function %s from public', open_to_all);
    end loop;
end
$$;

grant usage on schema quotas to tallystick_reader;
grant select on quotas.own_windows to tallystick_reader;
-- The grant on all tables of the schema reaches views too.
revoke all on quotas.own_windows from tallystick_api, tallystick_operator, tallystick_analyst, tallystick_billing,
    tallystick_rollup;
