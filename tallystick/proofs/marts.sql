-- The standing proof, second half: the mart equals the ledger up to the mart's watermark, per tenant, {what} and currencies.
with consumed as (
    select e.*
    from ledger.entries as e
    join ledger.batches as b on b.batch_id = e.batch_id
    join marts.watermarks as w on w.feed_id = b.feed_id and b.number <= w.low and w.model = '{mart}'
    where {ledger_scope}
),

ledger as (
    select
        tenant_id,
        {ledger_time} as bucket,
        coalesce(cost_currency::text, '') as cost_currency,
        coalesce(charge_currency::text, '') as charge_currency,
        coalesce(sum(cost_amount), 0) as cost,
        coalesce(sum(charge_amount), 0) as charge,
        sum(request_count) as requests,
        coalesce(sum(input_tokens), 0) as input_tokens,
        coalesce(sum(output_tokens), 0) as output_tokens,
        coalesce(sum(request_count) filter (where charge_amount is null), 0) as unpriced
    from consumed
    group by 1, 2, 3, 4
),

mart as (
    select
        tenant_id,
        {mart_time} as bucket,
        cost_currency,
        charge_currency,
        sum(cost_amount) as cost,
        sum(charge_amount) as charge,
        sum(request_count) as requests,
        sum(input_tokens) as input_tokens,
        sum(output_tokens) as output_tokens,
        sum(charge_unpriced_count) as unpriced
    from marts.{mart}
    where {mart_scope}
    group by 1, 2, 3, 4
),

compared as (
    select
        tenant_id,
        bucket,
        cost_currency,
        charge_currency,
        m.charge as mart_charge,
        l.charge as ledger_charge,
        m.cost as mart_cost,
        l.cost as ledger_cost,
        m.requests as mart_requests,
        l.requests as ledger_requests
    from ledger as l
    full join mart as m using (tenant_id, bucket, cost_currency, charge_currency)
    where
        coalesce(l.cost, 0) <> coalesce(m.cost, 0)
        or coalesce(l.charge, 0) <> coalesce(m.charge, 0)
        or coalesce(l.requests, 0) <> coalesce(m.requests, 0)
        or coalesce(l.input_tokens, 0) <> coalesce(m.input_tokens, 0)
        or coalesce(l.output_tokens, 0) <> coalesce(m.output_tokens, 0)
        or coalesce(l.unpriced, 0) <> coalesce(m.unpriced, 0)
)

select
    format(
        '{mart}: tenant %s, {what} %s: the mart says charge %s %s, cost %s %s, %s requests; the ledger says %s, %s, %s',
        tenant_id, {bucket_text}, trim_scale(coalesce(mart_charge, 0)), charge_currency, trim_scale(coalesce(mart_cost, 0)), cost_currency,
        coalesce(mart_requests, 0), trim_scale(coalesce(ledger_charge, 0)), trim_scale(coalesce(ledger_cost, 0)), coalesce(ledger_requests, 0)
    ) as failure
from compared

union all

select format('{mart}: watermark %s of feed %s is beyond its last batch, %s', w.low, w.feed_id, coalesce(f.last_number, 0))
from marts.watermarks as w
left join ledger.feeds as f on f.feed_id = w.feed_id
where w.model = '{mart}' and w.low > coalesce(f.last_number, 0)
