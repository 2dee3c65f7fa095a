-- A month whose rows have left: the seals of its tenants come to what its batches' digests say, and to its export.
with gone as (
    select
        m.posting_period,
        m.row_count
    from ledger.retired_months as m
    where m.posting_period = any({gone})
),

sealed as (
    select
        s.posting_period,
        sum(s.row_count) as row_count
    from ledger.seals as s
    join ledger.periods as p
        on p.tenant_id = s.tenant_id and p.posting_period = s.posting_period and p.close_number = s.close_number
    where s.posting_period = any({gone})
    group by s.posting_period
),

digested as (
    select
        posting_period,
        sum(row_count) as row_count
    from ledger.batch_digests
    where posting_period = any({gone})
    group by posting_period
),

sums as (
    select posting_period, side, book, currency, sum(amount) as amount
    from (
        select s.posting_period, 'seals' as side, b.book, a.key as currency, a.value::numeric as amount
        from ledger.seals as s
        join ledger.periods as p
            on p.tenant_id = s.tenant_id and p.posting_period = s.posting_period and p.close_number = s.close_number
        cross join lateral (values ('cost', s.cost_sums), ('charge', s.charge_sums)) as b (book, sums)
        cross join lateral jsonb_each_text(b.sums) as a
        where s.posting_period = any({gone})
        union all
        select d.posting_period, 'digests', b.book, a.key, a.value::numeric
        from ledger.batch_digests as d
        cross join lateral (values ('cost', d.cost_sums), ('charge', d.charge_sums)) as b (book, sums)
        cross join lateral jsonb_each_text(b.sums) as a
        where d.posting_period = any({gone})
    ) as both_sides
    group by 1, 2, 3, 4
)

select
    format(
        '%s, whose rows have left: its digests hold %s rows, the seals %s, the export %s', to_char(g.posting_period, 'YYYY-MM'),
        coalesce(d.row_count, 0), coalesce(s.row_count, 0), g.row_count
    ) as failure
from gone as g
left join sealed as s using (posting_period)
left join digested as d using (posting_period)
where coalesce(d.row_count, 0) <> coalesce(s.row_count, 0) or coalesce(d.row_count, 0) <> g.row_count

union all

select
    format(
        '%s, whose rows have left: its seals come to %s %s of %s, its digests to %s', to_char(posting_period, 'YYYY-MM'),
        coalesce(trim_scale(s.amount), 0), currency, book, coalesce(trim_scale(d.amount), 0)
    )
from (select * from sums where side = 'seals') as s
full join (select * from sums where side = 'digests') as d using (posting_period, book, currency)
where coalesce(s.amount, 0) <> coalesce(d.amount, 0)

union all

-- A partition that somebody took away without the act is no month that left.
select format('the rows of %s are not in the ledger, and no act took them out', to_char(posting_period, 'YYYY-MM'))
from (select distinct posting_period from ledger.batch_digests) as d
where
    posting_period <> all({gone})
    and not exists (
        select
        from pg_inherits as i
        where
            i.inhparent = 'ledger.entries'::regclass
            and i.inhrelid = to_regclass('ledger.entries_' || to_char(d.posting_period, 'YYYY_MM'))
    )
order by 1
