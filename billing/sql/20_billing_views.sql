-- What keeps a month closed: `ledger.what_depends_on` asks the function of this name in every schema of the owner.
create or replace function billing.what_depends_on(of_tenant text, of_month date) returns setof text
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select format('invoice %s is issued: void it first', d.number)
    from billing.documents as d
    where
        d.tenant_id = of_tenant
        and d.posting_period = of_month
        and d.kind = 'invoice'
        and not exists (select from billing.voids as v where v.document_id = d.document_id)
    order by d.number
$$;

-- Documents that count, with what was given back of each.
create or replace view billing.live_documents
with (security_invoker = true)
as
select
    d.document_id,
    d.kind,
    d.basis,
    d.entity_id,
    d.number,
    d.tenant_id,
    d.posting_period,
    d.currency,
    d.issued_at,
    d.due_date,
    d.exact_subtotal,
    d.subtotal,
    d.tax_total,
    d.total,
    d.credit_total,
    d.amount_due,
    d.corrects_document_id,
    coalesce(c.total, 0) as credited_total,
    case d.kind when 'invoice' then d.total else -d.total end as owed
from billing.documents as d
left join lateral (
    select sum(n.total) as total
    from billing.documents as n
    where
        n.corrects_document_id = d.document_id
        and not exists (select from billing.voids as v where v.document_id = n.document_id)
) as c on true
where not exists (select from billing.voids as v where v.document_id = d.document_id);

comment on view billing.live_documents is 'One row per document that counts: issued and not voided.';
comment on column billing.live_documents.document_id is 'What other tables name it by.';
comment on column billing.live_documents.kind is 'invoice or credit_note.';
comment on column billing.live_documents.basis is 'period: an invoice; usage, commercial or owed_back: a credit note.';
comment on column billing.live_documents.entity_id is 'Who issued it.';
comment on column billing.live_documents.number is 'As printed.';
comment on column billing.live_documents.tenant_id is 'Who pays.';
comment on column billing.live_documents.posting_period is 'The month; of a credit note, that of the invoice.';
comment on column billing.live_documents.currency is 'Of its amounts, ISO 4217.';
comment on column billing.live_documents.issued_at is 'When it was issued.';
comment on column billing.live_documents.due_date is 'Of an invoice.';
comment on column billing.live_documents.exact_subtotal is 'Of its lines, unrounded.';
comment on column billing.live_documents.subtotal is 'Of its lines, as printed.';
comment on column billing.live_documents.tax_total is 'Tax on it.';
comment on column billing.live_documents.total is 'subtotal + tax_total.';
comment on column billing.live_documents.credit_total is 'Paid from grants; of a credit note: given back to them.';
comment on column billing.live_documents.amount_due is 'In money.';
comment on column billing.live_documents.corrects_document_id is 'Of a credit note: the invoice.';
comment on column billing.live_documents.credited_total is 'Of an invoice: what credit notes gave back of its total.';
comment on column billing.live_documents.owed is 'The total, negative on a credit note: sums to what a tenant owes over all documents.';

-- Tenants and months that a refusal keeps from being invoiced, with its newest reasons, until a run finds none.
create or replace view billing.waiting
with (security_invoker = true)
as
select
    p.tenant_id,
    p.posting_period,
    p.currency,
    p.reasons,
    p.parked_at
from (
    select distinct on (posting_period, tenant_id, currency)
        tenant_id,
        posting_period,
        currency,
        reasons,
        parked_at
    from billing.parked
    order by posting_period, tenant_id, currency, parked_id desc
) as p
where cardinality(p.reasons) > 0;

comment on view billing.waiting is 'One row per tenant, month and currency that could not be invoiced yet, with the newest reasons.';
comment on column billing.waiting.tenant_id is 'Whose month.';
comment on column billing.waiting.posting_period is 'The first day of the month.';
comment on column billing.waiting.currency is 'Of the invoice; null where the whole month is refused.';
comment on column billing.waiting.reasons is 'What keeps it from being issued, a line each.';
comment on column billing.waiting.parked_at is 'When it was refused last with these words.';

-- What a tenant's reader sees, as ledger/sql/40_views.sql says of entries: the owner's rights behind a barrier, sifted by login.
create or replace view billing.own_documents
with (security_barrier = true)
as
select
    d.document_id || '' as document_id,
    d.kind || '' as kind,
    d.number || '' as number,
    d.tenant_id || '' as tenant_id,
    d.posting_period + 0 as posting_period,
    d.currency::text || '' as currency,
    d.issued_at + interval '0' as issued_at,
    d.due_date + 0 as due_date,
    d.subtotal + 0 as subtotal,
    d.tax_total + 0 as tax_total,
    d.total + 0 as total,
    d.credit_total + 0 as credit_total,
    d.amount_due + 0 as amount_due,
    d.corrects_document_id || '' as corrects_document_id,
    exists (select from billing.voids as v where v.document_id = d.document_id) as is_voided
from billing.documents as d
where d.tenant_id in (select r.tenant_id from ledger.reader_tenants as r where r.login = session_user);

comment on view billing.own_documents is 'One row per invoice or credit note of the login''s tenants.';
comment on column billing.own_documents.document_id is 'What its lines name it by.';
comment on column billing.own_documents.kind is 'invoice or credit_note.';
comment on column billing.own_documents.number is 'As printed.';
comment on column billing.own_documents.tenant_id is 'Who pays: always a tenant of the login.';
comment on column billing.own_documents.posting_period is 'The month; of a credit note, that of the invoice.';
comment on column billing.own_documents.currency is 'Of its amounts, ISO 4217.';
comment on column billing.own_documents.issued_at is 'When it was issued.';
comment on column billing.own_documents.due_date is 'Of an invoice.';
comment on column billing.own_documents.subtotal is 'Of its lines, as printed.';
comment on column billing.own_documents.tax_total is 'Tax on it.';
comment on column billing.own_documents.total is 'subtotal + tax_total.';
comment on column billing.own_documents.credit_total is 'Paid from grants; of a credit note: given back to them.';
comment on column billing.own_documents.amount_due is 'In money.';
comment on column billing.own_documents.corrects_document_id is 'Of a credit note: the invoice.';
comment on column billing.own_documents.is_voided is 'It no longer counts.';

create or replace view billing.own_document_lines
with (security_barrier = true)
as
select
    l.document_id || '' as document_id,
    l.line_no + 0 as line_no,
    l.kind || '' as kind,
    l.description || '' as description,
    l.service_start + 0 as service_start,
    l.service_end + 0 as service_end,
    l.feature || '' as feature,
    l.provider || '' as provider,
    l.model || '' as model,
    l.meter || '' as meter,
    l.quantity + 0 as quantity,
    l.unit_price + 0 as unit_price,
    l.per + 0 as per,
    l.exact_amount + 0 as exact_amount,
    l.amount + 0 as amount
from billing.document_lines as l
join billing.documents as d on d.document_id = l.document_id
where d.tenant_id in (select r.tenant_id from ledger.reader_tenants as r where r.login = session_user);

comment on view billing.own_document_lines is 'One row per line of the documents of the login''s tenants.';
comment on column billing.own_document_lines.document_id is 'Whose line.';
comment on column billing.own_document_lines.line_no is 'Its place, from 1.';
comment on column billing.own_document_lines.kind is 'usage, fee, minimum, discount, owed_back or credit.';
comment on column billing.own_document_lines.description is 'As printed.';
comment on column billing.own_document_lines.service_start is 'The first day that it is for.';
comment on column billing.own_document_lines.service_end is 'Exclusive.';
comment on column billing.own_document_lines.feature is 'What it was for.';
comment on column billing.own_document_lines.provider is 'Who served it.';
comment on column billing.own_document_lines.model is 'The canonical id.';
comment on column billing.own_document_lines.meter is 'What was counted.';
comment on column billing.own_document_lines.quantity is 'In the meter''s unit.';
comment on column billing.own_document_lines.unit_price is 'For `per` units; null where there are several.';
comment on column billing.own_document_lines.per is 'Units that the price is for.';
comment on column billing.own_document_lines.exact_amount is 'Unrounded.';
comment on column billing.own_document_lines.amount is 'As printed.';
