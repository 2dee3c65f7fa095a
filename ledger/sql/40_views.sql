-- One row per entry, book and meter: quantity, unit price and amount. The lines of an entry sum to its amount exactly.
create or replace view ledger.entry_lines
with (security_invoker = true)
as
with meters as (
    select
        e.posting_period,
        e.entry_id,
        e.tenant_id,
        e.occurred_at,
        e.cost_rate_set_id,
        e.charge_rate_set_id,
        m.meter,
        m.quantity
    from ledger.entries as e
    cross join lateral (
        values
            ('uncached_input_tokens', e.uncached_input_tokens),
            ('cache_read_tokens', e.cache_read_tokens),
            ('cache_write_5m_tokens', e.cache_write_5m_tokens),
            ('cache_write_1h_tokens', e.cache_write_1h_tokens),
            ('cache_write_other_tokens', e.cache_write_other_tokens),
            ('visible_output_tokens', e.visible_output_tokens),
            ('reasoning_tokens', e.reasoning_tokens)
        union all
        select o.key, o.value::bigint
        from jsonb_each_text(coalesce(e.other_quantities, '{}')) as o
    ) as m (meter, quantity)
    where m.quantity <> 0
)
select
    m.posting_period,
    m.entry_id,
    m.tenant_id,
    m.occurred_at,
    s.book,
    m.meter,
    m.quantity,
    r.price,
    r.per,
    r.priced_as,
    s.currency,
    -- Exact: `per` is a power of ten, and ten to minus nine is the finest step that a rate is divided into.
    m.quantity * r.price * case r.per
        when 1 then 1
        when 10 then 0.1
        when 100 then 0.01
        when 1000 then 0.001
        when 10000 then 0.0001
        when 100000 then 0.00001
        when 1000000 then 0.000001
        when 10000000 then 0.0000001
        when 100000000 then 0.00000001
        when 1000000000 then 0.000000001
    end as amount
from meters as m
-- A rate set is of one book, so each meter meets at most one rate of each. As a lateral list of the two sets, each entry
-- read all rates there are once the planner had statistics.
join ledger.rates as r on r.rate_set_id in (m.cost_rate_set_id, m.charge_rate_set_id) and r.meter = m.meter
join ledger.rate_sets as s on s.rate_set_id = r.rate_set_id

union all

-- What a person stated in money has no meter: one line, so that lines sum to what is owed.
select
    e.posting_period,
    e.entry_id,
    e.tenant_id,
    e.occurred_at,
    b.book,
    'amount_stated',
    sign(b.amount)::bigint,
    abs(b.amount),
    1,
    null,
    b.currency,
    b.amount
from ledger.entries as e
cross join lateral (
    values ('cost', e.cost_amount, e.cost_currency), ('charge', e.charge_amount, e.charge_currency)
) as b (book, amount, currency)
where e.usage_flags @> '{amount_stated}' and b.amount <> 0;

comment on view ledger.entry_lines is 'One row per entry, book and meter; amounts of a priced entry sum to it exactly. Fees, corrections and converted prices have lines like any other; what a billing rule frees has lines of zero.';
comment on column ledger.entry_lines.posting_period is 'The month that the entry is billed in: name it, and one partition is read.';
comment on column ledger.entry_lines.entry_id is 'The entry that the line belongs to.';
comment on column ledger.entry_lines.tenant_id is 'Who pays.';
comment on column ledger.entry_lines.occurred_at is 'When the call ended.';
comment on column ledger.entry_lines.book is 'cost: what we owe the provider; charge: what the tenant owes us.';
comment on column ledger.entry_lines.meter is 'What is counted; `operations` is the unit of a fee, `amount_stated` a difference in money that a person stated.';
comment on column ledger.entry_lines.quantity is 'How much of it, in the meter''s unit; negative where a correction takes back.';
comment on column ledger.entry_lines.price is 'For `per` units, in `currency`, unrounded: as the rate set of the entry says.';
comment on column ledger.entry_lines.per is 'Units that the price is for, a power of ten.';
comment on column ledger.entry_lines.priced_as is 'The meter whose rate was taken, where the card had none for this one.';
comment on column ledger.entry_lines.currency is 'Of price and amount, ISO 4217.';
comment on column ledger.entry_lines.amount is 'quantity x price / per, exactly.';

-- The months whose rows have left the ledger, as the last step left each of them. Proofs take their digests and seals in the
-- place of rows, unless these are readable again.
create or replace view ledger.retired_months
with (security_invoker = true)
as
with steps as (
    select
        r.posting_period,
        min(r.at) filter (where r.step = 'retire') over month as retired_at,
        last_value(r.rows_are) over month as rows_are,
        r.row_count,
        r.location,
        r.manifest_hash,
        r.step,
        row_number() over (partition by r.posting_period, r.step order by r.retirement_id desc) as age
    from ledger.retirements as r
    window month as (
        partition by r.posting_period
        order by r.retirement_id
        rows between unbounded preceding and unbounded following
    )
)
select
    posting_period,
    retired_at,
    rows_are,
    rows_are = 'attached' as is_readable,
    row_count,
    location,
    manifest_hash
from steps
where step = 'export' and age = 1 and retired_at is not null;

comment on view ledger.retired_months is 'One row per month whose rows have left the ledger; keys, requests, batches, digests and seals stay.';
comment on column ledger.retired_months.posting_period is 'The first day of the month.';
comment on column ledger.retired_months.retired_at is 'When its rows first left.';
comment on column ledger.retired_months.rows_are is 'attached: readable again; kept: in a table of the owner''s; dropped: in the export alone.';
comment on column ledger.retired_months.is_readable is 'Are the rows in ledger.entries again, for an investigation?';
comment on column ledger.retired_months.row_count is 'How many rows there are, evidence included.';
comment on column ledger.retired_months.location is 'Where the last export was written to.';
comment on column ledger.retired_months.manifest_hash is 'SHA-256 of the manifest of that export.';

-- --- What a tenant's reader sees -------------------------------------------------------------------------------------
--
-- Readers have rights on these views alone. A policy on the tables would hide the rows, but `explain` would still guess from
-- everybody's statistics how many rows another tenant has. So the views run with the owner's rights, sift by login behind a
-- barrier, and give values as expressions, of which there are no statistics. What we pay a provider is not in them.

create or replace view ledger.own_tenants
with (security_barrier = true)
as
select r.tenant_id || '' as tenant_id
from ledger.reader_tenants as r
where r.login = session_user;

comment on view ledger.own_tenants is 'One row per tenant that the login may see.';
comment on column ledger.own_tenants.tenant_id is 'The tenant.';

create or replace view ledger.own_entries
with (security_barrier = true)
as
select
    e.posting_period,
    e.entry_id,
    e.kind || '' as kind,
    e.corrects_entry_id + 0 as corrects_entry_id,
    e.occurred_at,
    e.recorded_at,
    e.local_date,
    e.tenant_id || '' as tenant_id,
    e.source || '' as source,
    e.request_id || '' as request_id,
    e.operation_id || '' as operation_id,
    e.attempt_kind || '' as attempt_kind,
    e.response_id || '' as response_id,
    e.provider || '' as provider,
    e.requested_model || '' as requested_model,
    e.reported_model || '' as reported_model,
    e.model || '' as model,
    e.requested_service_tier || '' as requested_service_tier,
    e.service_tier || '' as service_tier,
    e.region || '' as region,
    e.operation || '' as operation,
    e.feature || '' as feature,
    e.language || '' as language,
    e.route || '' as route,
    e.lane || '' as lane,
    e.api_key_id || '' as api_key_id,
    e.conversation_id || '' as conversation_id,
    e.app_version || '' as app_version,
    e.trace_id || '' as trace_id,
    e.status || '' as status,
    e.stop_reason || '' as stop_reason,
    e.cache_result || '' as cache_result,
    e.basis || '' as basis,
    e.reservation_id || '' as reservation_id,
    e.subject_id,
    e.tags,
    e.attempt + 0 as attempt,
    (e.is_final is true) as is_final,
    e.request_count + 0 as request_count,
    e.uncached_input_tokens + 0 as uncached_input_tokens,
    e.cache_read_tokens + 0 as cache_read_tokens,
    e.cache_write_5m_tokens + 0 as cache_write_5m_tokens,
    e.cache_write_1h_tokens + 0 as cache_write_1h_tokens,
    e.cache_write_other_tokens + 0 as cache_write_other_tokens,
    e.visible_output_tokens + 0 as visible_output_tokens,
    e.reasoning_tokens + 0 as reasoning_tokens,
    e.input_tokens + 0 as input_tokens,
    e.output_tokens + 0 as output_tokens,
    e.avoided_tokens + 0 as avoided_tokens,
    e.other_quantities,
    e.charge_amount + 0 as charge_amount,
    e.charge_currency::text || '' as charge_currency,
    e.usage_flags || '{}'::text[] as usage_flags,
    array(select m.meter from unnest(e.unpriced_meters) as m (meter) where starts_with(m.meter, 'charge:')) as unpriced_meters,
    e.latency_ms + 0 as latency_ms,
    e.ttft_ms + 0 as ttft_ms
from ledger.entries as e
where e.tenant_id in (select r.tenant_id from ledger.reader_tenants as r where r.login = session_user);

comment on view ledger.own_entries is 'One row per entry of the login''s tenants; without what the providers cost.';
comment on column ledger.own_entries.posting_period is 'The month that it is billed in.';
comment on column ledger.own_entries.entry_id is 'batch_id x 65,536 + the row''s place in its batch: order of recording inside a feed.';
comment on column ledger.own_entries.kind is 'usage: the first report; true_up: a better one minus what stood; adjustment: a corrected price; reversal; fee: for an operation; evidence: moves nothing.';
comment on column ledger.own_entries.corrects_entry_id is 'The first entry of the request that it corrects.';
comment on column ledger.own_entries.occurred_at is 'When the call ended, by the reporter''s clock.';
comment on column ledger.own_entries.recorded_at is 'When the row was written, by the database''s clock.';
comment on column ledger.own_entries.local_date is 'Of occurred_at, in the tenant''s zone.';
comment on column ledger.own_entries.tenant_id is 'Who pays: always a tenant of the login.';
comment on column ledger.own_entries.source is 'The sender, as its events name it.';
comment on column ledger.own_entries.request_id is 'One upstream attempt that somebody bills, as the gateway named it.';
comment on column ledger.own_entries.operation_id is 'The logical request that attempts belong to.';
comment on column ledger.own_entries.attempt_kind is 'first, retry, fallback, continuation or hedge.';
comment on column ledger.own_entries.response_id is 'The provider''s own name for the answer.';
comment on column ledger.own_entries.provider is 'Who served the call.';
comment on column ledger.own_entries.requested_model is 'The model that was asked for, as sent.';
comment on column ledger.own_entries.reported_model is 'The model that answered, as sent.';
comment on column ledger.own_entries.model is 'The canonical id; null where the name is nobody''s.';
comment on column ledger.own_entries.requested_service_tier is 'The tier that was asked for.';
comment on column ledger.own_entries.service_tier is 'The tier that was served: it selects the price.';
comment on column ledger.own_entries.region is 'Where it was served.';
comment on column ledger.own_entries.operation is 'What kind of call: chat, embeddings, rerank, ...';
comment on column ledger.own_entries.feature is 'What it was for.';
comment on column ledger.own_entries.language is 'Primary subtag plus script of the text; und where unknown.';
comment on column ledger.own_entries.route is 'The route in the gateway.';
comment on column ledger.own_entries.lane is 'interactive or batch; never selects a price.';
comment on column ledger.own_entries.api_key_id is 'The caller''s key in the gateway, by its public name.';
comment on column ledger.own_entries.conversation_id is 'The conversation that it belongs to.';
comment on column ledger.own_entries.app_version is 'The version of the calling application.';
comment on column ledger.own_entries.trace_id is 'The trace that it belongs to.';
comment on column ledger.own_entries.status is 'ok, error, cancelled, interrupted, refused, in_progress or void.';
comment on column ledger.own_entries.stop_reason is 'Why the model stopped, as sent.';
comment on column ledger.own_entries.cache_result is 'miss, exact_hit, semantic_hit (both the gateway''s own) or prefix_hit.';
comment on column ledger.own_entries.basis is 'reported by whoever counted, or estimated.';
comment on column ledger.own_entries.reservation_id is 'The reservation that it was admitted under.';
comment on column ledger.own_entries.subject_id is 'The tenant''s user, linked to the sender''s hash in ledger.subjects until erased.';
comment on column ledger.own_entries.tags is 'The sender''s own labels.';
comment on column ledger.own_entries.attempt is 'Which try of the operation it is, from 1, as sent.';
comment on column ledger.own_entries.is_final is 'False for a report of a call that goes on.';
comment on column ledger.own_entries.request_count is '1, 0 or -1: sums to the number of requests.';
comment on column ledger.own_entries.uncached_input_tokens is 'Text input that came from no cache and went into none.';
comment on column ledger.own_entries.cache_read_tokens is 'Text input read from the provider''s cache.';
comment on column ledger.own_entries.cache_write_5m_tokens is 'Input written to a cache for five minutes.';
comment on column ledger.own_entries.cache_write_1h_tokens is 'Input written to a cache for an hour.';
comment on column ledger.own_entries.cache_write_other_tokens is 'Input written to a cache for a time that nobody stated.';
comment on column ledger.own_entries.visible_output_tokens is 'Text output that the caller sees.';
comment on column ledger.own_entries.reasoning_tokens is 'Output that the caller does not see.';
comment on column ledger.own_entries.input_tokens is 'All input token meters, rare ones included; not a meter itself.';
comment on column ledger.own_entries.output_tokens is 'All output token meters, rare ones included; not a meter itself.';
comment on column ledger.own_entries.avoided_tokens is 'Counts of a gateway''s own cache hit: not used, not billed.';
comment on column ledger.own_entries.other_quantities is 'Rare meters: {meter: count}.';
comment on column ledger.own_entries.charge_amount is 'What the tenant owes us, unrounded; null while unpriced.';
comment on column ledger.own_entries.charge_currency is 'The tenant''s, ISO 4217.';
comment on column ledger.own_entries.usage_flags is 'States of the counts that people should see, such as usage_missing; ingest/README.md lists them.';
comment on column ledger.own_entries.unpriced_meters is 'Why charge_amount is null: charge:meter, or charge:model.';
comment on column ledger.own_entries.latency_ms is 'From the request to the end of the answer.';
comment on column ledger.own_entries.ttft_ms is 'From the request to the first token.';

create or replace view ledger.own_entry_lines
with (security_barrier = true)
as
with meters as (
    select
        e.posting_period,
        e.entry_id,
        e.tenant_id,
        e.occurred_at,
        e.charge_rate_set_id,
        m.meter,
        m.quantity
    from ledger.entries as e
    cross join lateral (
        values
            ('uncached_input_tokens', e.uncached_input_tokens),
            ('cache_read_tokens', e.cache_read_tokens),
            ('cache_write_5m_tokens', e.cache_write_5m_tokens),
            ('cache_write_1h_tokens', e.cache_write_1h_tokens),
            ('cache_write_other_tokens', e.cache_write_other_tokens),
            ('visible_output_tokens', e.visible_output_tokens),
            ('reasoning_tokens', e.reasoning_tokens)
        union all
        select o.key, o.value::bigint
        from jsonb_each_text(coalesce(e.other_quantities, '{}')) as o
    ) as m (meter, quantity)
    where
        m.quantity <> 0
        and e.tenant_id in (select r.tenant_id from ledger.reader_tenants as r where r.login = session_user)
)
select
    m.posting_period,
    m.entry_id,
    m.tenant_id || '' as tenant_id,
    m.occurred_at,
    m.meter || '' as meter,
    m.quantity + 0 as quantity,
    r.price + 0 as price,
    r.per + 0 as per,
    r.priced_as || '' as priced_as,
    s.currency::text || '' as currency,
    -- As in entry_lines.
    m.quantity * r.price * (1 / r.per::numeric(10, 0))::numeric(10, 9) as amount
from meters as m
join ledger.rates as r on r.rate_set_id = m.charge_rate_set_id and r.meter = m.meter
join ledger.rate_sets as s on s.rate_set_id = r.rate_set_id;

comment on view ledger.own_entry_lines is 'One row per entry and meter of the login''s tenants, at what they are charged; lines sum to charge_amount exactly.';
comment on column ledger.own_entry_lines.posting_period is 'The month that the entry is billed in: name it, and one partition is read.';
comment on column ledger.own_entry_lines.entry_id is 'The entry that the line belongs to.';
comment on column ledger.own_entry_lines.tenant_id is 'Who pays: always a tenant of the login.';
comment on column ledger.own_entry_lines.occurred_at is 'When the call ended.';
comment on column ledger.own_entry_lines.meter is 'What is counted; `operations` is the unit of a fee.';
comment on column ledger.own_entry_lines.quantity is 'How much of it, in the meter''s unit; negative where a correction takes back.';
comment on column ledger.own_entry_lines.price is 'For `per` units, in `currency`, unrounded.';
comment on column ledger.own_entry_lines.per is 'Units that the price is for, a power of ten.';
comment on column ledger.own_entry_lines.priced_as is 'The meter whose rate was taken, where the card had none for this one.';
comment on column ledger.own_entry_lines.currency is 'Of price and amount, ISO 4217.';
comment on column ledger.own_entry_lines.amount is 'quantity x price / per, exactly.';

-- Pairs that a person should see. `tallystick statements` asks them.
create or replace view ledger.statements_that_differ
with (security_invoker = true)
as
select
    difference_no,
    recorded_at,
    tenant_id,
    request_id,
    request_key,
    occurred_at,
    stood_source,
    said_source,
    is_counted,
    stood_quantities,
    said_quantities,
    stood_charge,
    said_charge,
    said_charge - stood_charge as charge_difference,
    charge_currency,
    stood_cost,
    said_cost,
    said_cost - stood_cost as cost_difference,
    cost_currency,
    batch_id,
    entry_id
from ledger.differences;

comment on view ledger.statements_that_differ is 'One row per final report of another source, such as a node beside its gateway, that said other counts or amounts of a request than what stood when it came.';
comment on column ledger.statements_that_differ.difference_no is 'Order of noting.';
comment on column ledger.statements_that_differ.recorded_at is 'When the later report was written: ask by it, alone or with tenant_id, and an index serves.';
comment on column ledger.statements_that_differ.tenant_id is 'Who pays.';
comment on column ledger.statements_that_differ.request_id is 'The request that both speak of.';
comment on column ledger.statements_that_differ.request_key is 'Its key in ledger.requests and ledger.entries.';
comment on column ledger.statements_that_differ.occurred_at is 'When the call ended, by the first report.';
comment on column ledger.statements_that_differ.stood_source is 'Who said what stood before.';
comment on column ledger.statements_that_differ.said_source is 'Who said otherwise.';
comment on column ledger.statements_that_differ.is_counted is 'Whether the later report counted from then on.';
comment on column ledger.statements_that_differ.stood_quantities is 'What stood: {meter: count}, without zeros.';
comment on column ledger.statements_that_differ.said_quantities is 'What the later report said: {meter: count}, without zeros.';
comment on column ledger.statements_that_differ.stood_charge is 'Charge that stood, without differences that people stated; null while unpriced.';
comment on column ledger.statements_that_differ.said_charge is 'Charge by the later report; null while unpriced.';
comment on column ledger.statements_that_differ.charge_difference is 'said_charge minus stood_charge.';
comment on column ledger.statements_that_differ.charge_currency is 'The tenant''s, ISO 4217.';
comment on column ledger.statements_that_differ.stood_cost is 'Cost that stood; null while unpriced.';
comment on column ledger.statements_that_differ.said_cost is 'Cost by the later report; null while unpriced.';
comment on column ledger.statements_that_differ.cost_difference is 'said_cost minus stood_cost.';
comment on column ledger.statements_that_differ.cost_currency is 'ISO 4217; null while nobody knows it.';
comment on column ledger.statements_that_differ.batch_id is 'The batch of the later report.';
comment on column ledger.statements_that_differ.entry_id is 'First row of the later report.';

-- Counted by few columns first: nearly all answers stand once, and gathering their tenants and requests takes most of the time.
create or replace view ledger.responses_under_several_requests
with (security_invoker = true)
as
with several as (
    select
        posting_period,
        provider,
        provider_account,
        response_id
    from ledger.entries
    where request_count = 1 and request_key is not null and response_id is not null
    group by posting_period, provider, provider_account, response_id
    having count(*) > 1
)

select
    e.posting_period,
    e.provider,
    e.provider_account,
    e.response_id,
    count(distinct e.request_key) as request_count,
    array_agg(distinct e.tenant_id) as tenant_ids,
    array_agg(distinct e.request_id) as request_ids,
    min(e.occurred_at) as first_occurred_at,
    max(e.occurred_at) as last_occurred_at
from several as s
join ledger.entries as e
    on
        e.posting_period = s.posting_period
        and e.response_id = s.response_id
        and e.provider is not distinct from s.provider
        and e.provider_account is not distinct from s.provider_account
where e.request_count = 1 and e.request_key is not null
group by e.posting_period, e.provider, e.provider_account, e.response_id
having count(distinct e.request_key) > 1;

comment on view ledger.responses_under_several_requests is 'One row per month and answer of a provider that stands under more than one request: billed twice, or an id used twice.';
comment on column ledger.responses_under_several_requests.posting_period is 'The month that they are billed in: name it, and one partition is read.';
comment on column ledger.responses_under_several_requests.provider is 'Who served the call.';
comment on column ledger.responses_under_several_requests.provider_account is 'The account that the provider bills.';
comment on column ledger.responses_under_several_requests.response_id is 'The provider''s own name for the answer.';
comment on column ledger.responses_under_several_requests.request_count is 'How many requests it stands under.';
comment on column ledger.responses_under_several_requests.tenant_ids is 'Who pays for them.';
comment on column ledger.responses_under_several_requests.request_ids is 'The requests.';
comment on column ledger.responses_under_several_requests.first_occurred_at is 'When the first of them ended.';
comment on column ledger.responses_under_several_requests.last_occurred_at is 'When the last of them ended.';

-- Alembic makes its own table; it should say what it is, like every other.
comment on table ledger.alembic_version is 'One row: the revision that the tables are at.';
comment on column ledger.alembic_version.version_num is 'The revision''s id; migrations/versions has them.';
