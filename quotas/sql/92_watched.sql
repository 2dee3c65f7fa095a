-- What somebody should be woken for, as ledger.watched() gives it: numbers that name nobody. Zero where nothing waits.
create or replace function quotas.watched() returns table (name text, label text, value double precision)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    -- What a disabled endpoint has not taken is no delay of ours: it is counted as disabled instead.
    select 'webhooks_oldest_seconds', null::text, coalesce(extract(epoch from clock_timestamp() - min(o.created_at)), 0)::double precision
    from quotas.deliveries as d
    join quotas.webhook_endpoints as e on e.endpoint_id = d.endpoint_id
    join quotas.outbox as o on o.message_id = d.message_id
    where d.state = 'pending' and e.disabled_at is null
    union all
    select 'webhooks_disabled', null, count(*)::double precision
    from quotas.webhook_endpoints as e
    where e.disabled_at is not null and e.removed_at is null
    union all
    select 'holds_overdue_seconds', null, coalesce(extract(epoch from clock_timestamp() - min(r.expires_at)), 0)::double precision
    from quotas.reservations as r
    where r.state in ('held', 'awaiting_entry') and r.state = 'held' and r.expires_at < clock_timestamp()
    union all
    select 'entries_awaited_seconds', null, coalesce(extract(epoch from clock_timestamp() - min(r.ended_at)), 0)::double precision
    from quotas.reservations as r
    where r.state in ('held', 'awaiting_entry') and r.state = 'awaiting_entry'
    union all
    select 'prepaid_limits_overdue_seconds', null, coalesce(extract(epoch from clock_timestamp() - min(t.at)), 0)::double precision
    from quotas.turns as t
    join quotas.budgets as b on b.budget_id = t.budget_id
    where t.at < clock_timestamp() and b.ended_at is null
$$;
