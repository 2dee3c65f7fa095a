-- What documents say of each other, of seals, grants and acts: numbers without a gap, one live invoice for each pair, voids and
-- credit notes that fit what they are about, sums that are their lines', grants that burnt what is printed, an act for each.
with documents as materialized (
    select
        d.*,
        v.document_id is not null as is_voided,
        format('%s %s of tenant %s', replace(d.kind, '_', ' '), d.number, d.tenant_id) as name
    from billing.documents as d
    left join (select distinct document_id from billing.voids) as v on v.document_id = d.document_id
),

-- Numbers.
numbered as materialized (
    select
        n.entity_id,
        n.kind,
        n.last_value,
        coalesce(max(d.number_value), 0) as newest
    from billing.numbers as n
    left join billing.documents as d on d.entity_id = n.entity_id and d.kind = n.kind
    group by n.entity_id, n.kind, n.last_value
),

-- Lines, by document and tax category.
summed as materialized (
    select
        document_id,
        tax_category,
        sum(amount) as amount,
        sum(exact_amount) as exact_amount
    from billing.document_lines
    group by document_id, tax_category
),

-- What credit notes that count give back, by invoice.
given as materialized (
    select
        corrects_document_id as document_id,
        sum(total) as total,
        sum(credit_total) as credit_total,
        string_agg(number, ', ' order by number_value) as numbers
    from documents
    where kind = 'credit_note' and not is_voided
    group by corrects_document_id
),

given_lines as (
    select
        d.corrects_document_id as document_id,
        l.corrects_line_no as line_no,
        sum(l.exact_amount) as exact_amount,
        sum(l.amount) as amount
    from documents as d
    join billing.document_lines as l on l.document_id = d.document_id
    where d.kind = 'credit_note' and not d.is_voided and l.corrects_line_no is not null
    group by d.corrects_document_id, l.corrects_line_no
),

given_taxes as (
    select
        d.corrects_document_id as document_id,
        t.category,
        sum(t.base) as base,
        sum(t.amount) as amount
    from documents as d
    join billing.document_taxes as t on t.document_id = d.document_id
    where d.kind = 'credit_note' and not d.is_voided
    group by d.corrects_document_id, t.category
),

given_credits as (
    select
        d.corrects_document_id as document_id,
        c.grant_id,
        sum(c.amount) as amount
    from documents as d
    join billing.document_credits as c on c.document_id = d.document_id
    where d.kind = 'credit_note' and not d.is_voided
    group by d.corrects_document_id, c.grant_id
),

-- Movements of grants as documents and their voids ask for them.
burning as materialized (
    select
        d.document_id || ':' || c.grant_id as key,
        c.grant_id,
        d.posting_period,
        case d.kind when 'invoice' then -c.amount else c.amount end as amount,
        d.name
    from documents as d
    join billing.document_credits as c on c.document_id = d.document_id

    union all

    select
        'void:' || d.document_id || ':' || c.grant_id,
        c.grant_id,
        d.posting_period,
        case d.kind when 'invoice' then c.amount else -c.amount end,
        'the void of ' || d.name
    from documents as d
    join billing.document_credits as c on c.document_id = d.document_id
    where d.is_voided
),

burnt as materialized (
    select *
    from quotas.grant_movements
    where kind = 'burnt'
),

acted as materialized (
    select
        act_id,
        act,
        actor,
        second_person,
        detail,
        detail ->> 'document_id' as document_id
    from ledger.acts
    where act in ('invoices.issue', 'credit-notes.issue', 'invoices.void')
),

-- What lines of live invoices come to, by what was charged.
lines as (
    select
        d.tenant_id,
        d.posting_period,
        l.charged_currency as currency,
        sum(l.charged_amount) as amount,
        string_agg(distinct d.number, ', ') as numbers
    from documents as d
    join billing.document_lines as l on l.document_id = d.document_id
    where d.kind = 'invoice' and not d.is_voided and l.kind = 'usage'
    group by d.tenant_id, d.posting_period, l.charged_currency
),

credited as (
    select
        c.tenant_id,
        c.posting_period,
        e.charge_currency as currency,
        sum(e.charge_amount) as amount
    from billing.credited_entries as c
    join ledger.entries as e on e.posting_period = c.posting_period and e.entry_id = c.entry_id
    group by c.tenant_id, c.posting_period, e.charge_currency
),

sealed as (
    select
        p.tenant_id,
        p.posting_period,
        s.key as currency,
        s.value::numeric as amount
    from ledger.periods as p
    join ledger.seals as k using (tenant_id, posting_period, close_number)
    cross join lateral jsonb_each_text(k.charge_sums) as s
    where p.state = 'closed'
)

select format('%s number %s of entity %s is missing: %s was the last that was given', replace(n.kind, '_', ' '), g.value, n.entity_id, n.last_value) as failure
from numbered as n
cross join lateral generate_series(1, greatest(n.last_value, n.newest)) as g (value)
left join billing.documents as d on d.entity_id = n.entity_id and d.kind = n.kind and d.number_value = g.value
where d.document_id is null

union all

select format('%s number %s of entity %s was given to %s documents: %s', replace(kind, '_', ' '), number_value, entity_id, count(*), string_agg(name, ' and ' order by name))
from documents
group by entity_id, kind, number_value
having count(*) > 1

union all

select format('%s has number %s of entity %s, whose last is %s', d.name, d.number_value, d.entity_id, coalesce(n.last_value, 0))
from documents as d
left join numbered as n on n.entity_id = d.entity_id and n.kind = d.kind
where d.number_value > coalesce(n.last_value, 0)

union all

select format('%s is printed with another number than its %s', name, number_value)
from documents
where right(number, greatest(6, length(number_value::text))) <> lpad(number_value::text, greatest(6, length(number_value::text)), '0')

union all

select format('tenant %s has %s live invoices of %s in %s: %s', tenant_id, count(*), to_char(posting_period, 'YYYY-MM'), currency, string_agg(number, ', ' order by number_value))
from documents
where kind = 'invoice' and not is_voided
group by tenant_id, posting_period, currency
having count(*) > 1

union all

select format('%s is revision %s, and the one before it does not stand voided', d.name, d.revision)
from documents as d
where
    d.kind = 'invoice'
    and d.revision > 1
    and not exists (
        select
        from billing.voids as v
        where (v.tenant_id, v.posting_period, v.currency, v.revision) = (d.tenant_id, d.posting_period, d.currency, d.revision - 1)
    )

union all

-- Voids.
select format('a void of tenant %s is of document %s, which is not there', v.tenant_id, v.document_id)
from billing.voids as v
where not exists (select from billing.documents as d where d.document_id = v.document_id)

union all

select format('%s has a void that speaks of another tenant, month, currency or revision', d.name)
from documents as d
join billing.voids as v on v.document_id = d.document_id
where (v.tenant_id, v.posting_period, v.currency, v.revision) is distinct from (d.tenant_id, d.posting_period, d.currency, d.revision)

union all

select format('%s is voided, and no act says so', d.name)
from documents as d
join billing.voids as v on v.document_id = d.document_id
where not exists (
    select
    from acted as a
    where
        a.act = 'invoices.void'
        and a.document_id in (d.document_id, d.issued_with_document_id)
        and (a.actor, a.second_person) is not distinct from (v.actor, v.second_person)
)

union all

select format('act %s, %s by %s: document %s is not voided', a.act_id, a.act, a.actor, a.document_id)
from acted as a
where a.act = 'invoices.void' and not exists (select from billing.voids as v where v.document_id = a.document_id)

union all

select format('%s was issued with %s, and only one of them is voided', n.name, d.name)
from documents as n
join documents as d on d.document_id = n.issued_with_document_id
where n.is_voided <> d.is_voided

union all

select format('%s is voided, which no credit note by hand ever is', name)
from documents
where kind = 'credit_note' and is_voided and issued_with_document_id is null

union all

-- Credit notes.
select format('%s corrects document %s, which is no invoice', n.name, n.corrects_document_id)
from documents as n
left join documents as d on d.document_id = n.corrects_document_id
where n.kind = 'credit_note' and d.kind is distinct from 'invoice'

union all

select format('%s is not of the tenant, month, currency and issuer of %s, which it corrects', n.name, d.name)
from documents as n
join documents as d on d.document_id = n.corrects_document_id
where (n.tenant_id, n.posting_period, n.currency, n.entity_id) <> (d.tenant_id, d.posting_period, d.currency, d.entity_id)

union all

select format('%s is voided, and %s still gives back of it', d.name, g.numbers)
from documents as d
join given as g on g.document_id = d.document_id
where d.is_voided

union all

select format('%s billed %s %s, of them %s from grants: %s give back %s, of them %s into grants', d.name, d.total, d.currency, d.credit_total, g.numbers, g.total, g.credit_total)
from documents as d
join given as g on g.document_id = d.document_id
where g.total > d.total or g.credit_total > d.credit_total or g.total - g.credit_total > d.amount_due

union all

select format('%s, line %s: credit notes give back %s, exactly %s, of %s, exactly %s', d.name, g.line_no, g.amount, trim_scale(g.exact_amount), coalesce(l.amount, 0), coalesce(trim_scale(l.exact_amount), 0))
from given_lines as g
join documents as d on d.document_id = g.document_id
left join billing.document_lines as l on l.document_id = g.document_id and l.line_no = g.line_no
where l.line_no is null or g.amount > l.amount or g.exact_amount > l.exact_amount

union all

select format('%s, tax %s: credit notes give back %s on %s, it has %s on %s', d.name, g.category, g.amount, g.base, coalesce(t.amount, 0), coalesce(t.base, 0))
from given_taxes as g
join documents as d on d.document_id = g.document_id
left join billing.document_taxes as t on t.document_id = g.document_id and t.category = g.category
where t.category is null or g.base > t.base or g.amount > t.amount

union all

select format('%s, grant %s: credit notes give back %s of %s', d.name, g.grant_id, g.amount, coalesce(c.amount, 0))
from given_credits as g
join documents as d on d.document_id = g.document_id
left join (
    select document_id, grant_id, sum(amount) as amount
    from billing.document_credits
    group by document_id, grant_id
) as c on c.document_id = g.document_id and c.grant_id = g.grant_id
where g.amount > coalesce(c.amount, 0)

union all

select format('%s, made of rows of the ledger, names none', d.name)
from documents as d
where
    d.basis = 'usage'
    and not exists (select from billing.credited_entries as c where c.document_id = d.document_id)

union all

select format('entry %s of tenant %s is credited by document %s, which is no credit note for usage of that tenant', c.entry_id, c.tenant_id, c.document_id)
from billing.credited_entries as c
left join documents as d on d.document_id = c.document_id
where d.basis is distinct from 'usage' or d.tenant_id <> c.tenant_id

union all

-- Sums.
select format('%s, tax %s: a base of %s, exactly %s; its lines come to %s, exactly %s', d.name, coalesce(t.category, s.tax_category), coalesce(t.base, 0), coalesce(trim_scale(t.exact_base), 0), coalesce(s.amount, 0), coalesce(trim_scale(s.exact_amount), 0))
from billing.document_taxes as t
full join summed as s on s.document_id = t.document_id and s.tax_category = t.category
join documents as d on d.document_id = coalesce(t.document_id, s.document_id)
where (t.base, t.exact_base) is distinct from (s.amount, s.exact_amount)

union all

select format('lines, taxes or credits name document %s, which is not there', o.document_id)
from (
    select document_id from billing.document_lines
    union
    select document_id from billing.document_taxes
    union
    select document_id from billing.document_credits
) as o
where not exists (select from billing.documents as d where d.document_id = o.document_id)

union all

-- Seals.
select format('%s is of close %s of its month, which %s', d.name, d.close_number, case when p.state = 'closed' then format('was closed again as %s', p.close_number) else 'is open' end)
from documents as d
join ledger.periods as p on p.tenant_id = d.tenant_id and p.posting_period = d.posting_period
where d.kind = 'invoice' and not d.is_voided and (p.state <> 'closed' or p.close_number <> d.close_number)

union all

select format('invoice %s of tenant %s: its lines come to %s %s, the seal of %s to %s', l.numbers, l.tenant_id, trim_scale(l.amount), l.currency, to_char(l.posting_period, 'YYYY-MM'), trim_scale(coalesce(s.amount, 0) - coalesce(c.amount, 0)))
from lines as l
left join sealed as s on s.tenant_id = l.tenant_id and s.posting_period = l.posting_period and s.currency = l.currency
left join credited as c on c.tenant_id = l.tenant_id and c.posting_period = l.posting_period and c.currency = l.currency
where
    l.amount <> coalesce(s.amount, 0) - coalesce(c.amount, 0)
    -- Nobody knows any more what credited rows of a month that left came to.
    and not (
        l.posting_period = any ({gone})
        and exists (
            select
            from billing.credited_entries as r
            where r.tenant_id = l.tenant_id and r.posting_period = l.posting_period
        )
    )

union all

-- Grants.
select format('%s: %s of grant %s moved on the books, it says %s', b.name, coalesce(m.amount, 0), b.grant_id, b.amount)
from burning as b
left join burnt as m on m.key = b.key
where (m.grant_id, m.posting_period, m.amount) is distinct from (b.grant_id, b.posting_period, b.amount)

union all

select format('grant %s of tenant %s burnt %s for %s, and no document says so', m.grant_id, g.tenant_id, -m.amount, to_char(m.posting_period, 'YYYY-MM'))
from burnt as m
join quotas.grants as g on g.grant_id = m.grant_id
where not exists (select from burning as b where b.key = m.key)

union all

-- Acts.
select format('%s, issued by %s: no act says so, or it says another number, total, digest, time or due date', d.name, d.actor)
from documents as d
where not exists (
    select
    from acted as a
    where
        a.document_id = d.document_id
        and a.act = case d.kind when 'invoice' then 'invoices.issue' else 'credit-notes.issue' end
        and (a.actor, a.second_person) is not distinct from (d.actor, d.second_person)
        and a.detail ->> 'number' = d.number
        and a.detail ->> 'tenant_id' = d.tenant_id
        and a.detail ->> 'digest' = d.digest
        and (a.detail ->> 'total')::numeric = d.total
        -- Older acts do not name them.
        and (
            not a.detail ? 'issued_at'
            or (
                (a.detail ->> 'issued_at')::timestamptz = d.issued_at
                and (a.detail ->> 'due_date')::date is not distinct from d.due_date
            )
        )
)

union all

select format('act %s, %s by %s: %s of tenant %s is not there', a.act_id, a.act, a.actor, a.detail ->> 'number', a.detail ->> 'tenant_id')
from acted as a
where a.act <> 'invoices.void' and not exists (select from billing.documents as d where d.document_id = a.document_id)
