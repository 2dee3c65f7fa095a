-- What batches and digests say of their rows: how many, and the sum of each book and currency. Of a month whose rows have
-- left, only the digests are there; its seal says what they come to.
with summed as materialized (
    select
        batch_id,
        posting_period,
        cost_currency::text as cost_currency,
        charge_currency::text as charge_currency,
        count(*) as row_count,
        count(cost_amount) as cost_count,
        sum(cost_amount) as cost,
        count(charge_amount) as charge_count,
        sum(charge_amount) as charge
    from {entries} as e
    group by 1, 2, 3, 4
),

found as (
    select
        batch_id,
        posting_period,
        sum(row_count) as row_count
    from summed
    group by batch_id, posting_period
),

found_sums as (
    select
        batch_id,
        posting_period,
        'cost' as book,
        cost_currency as currency,
        sum(cost) as amount
    from summed
    where cost_count > 0
    group by 1, 2, 4
    union all
    select
        batch_id,
        posting_period,
        'charge',
        charge_currency,
        sum(charge)
    from summed
    where charge_count > 0
    group by 1, 2, 4
),

stated_sums as (
    select
        d.batch_id,
        d.posting_period,
        s.book,
        s.currency,
        s.amount::numeric as amount
    from ledger.batch_digests as d
    cross join lateral (
        select
            'cost' as book,
            key as currency,
            value as amount
        from jsonb_each_text(d.cost_sums)
        union all
        select
            'charge',
            key,
            value
        from jsonb_each_text(d.charge_sums)
    ) as s
    where d.batch_id >= {first_batch} and d.posting_period <> all({gone})
),

digested as (
    select
        batch_id,
        sum(row_count) as row_count
    from ledger.batch_digests
    where batch_id >= {first_batch}
    group by batch_id
)

select
    format(
        'batch id %s holds %s rows of %s, its digest says %s', coalesce(f.batch_id, d.batch_id), coalesce(f.row_count, 0),
        to_char(coalesce(f.posting_period, d.posting_period), 'YYYY-MM'), coalesce(d.row_count, 0)
    ) as failure
from found as f
full join (
    select * from ledger.batch_digests where batch_id >= {first_batch} and posting_period <> all({gone})
) as d on d.batch_id = f.batch_id and d.posting_period = f.posting_period
where f.row_count is distinct from d.row_count

union all

select
    format(
        'batch id %s, %s, %s in %s: the rows sum to %s, the digest says %s', coalesce(f.batch_id, s.batch_id),
        to_char(coalesce(f.posting_period, s.posting_period), 'YYYY-MM'), coalesce(f.book, s.book),
        coalesce(f.currency, s.currency), trim_scale(coalesce(f.amount, 0)), trim_scale(coalesce(s.amount, 0))
    )
from found_sums as f
full join stated_sums as s
    on
        s.batch_id = f.batch_id
        and s.posting_period = f.posting_period
        and s.book = f.book
        and s.currency = f.currency
where f.amount is distinct from s.amount

union all

select format('batch %s of feed %s wrote %s entries, its digests say %s', b.number, n.name, b.entry_count, coalesce(d.row_count, 0))
from ledger.batches as b
join ledger.feeds as n on n.feed_id = b.feed_id
left join digested as d on d.batch_id = b.batch_id
where b.batch_id >= {first_batch} and b.entry_count <> coalesce(d.row_count, 0)
