{%- set columns = [
    "tenant_id", "first_date", "language", "provider", "model", "cost_currency", "charge_currency",
] -%}
{%- set parts_by = [
    "tenant_id", "conversation_id", "local_date", "language", "provider", "model", "cost_currency", "charge_currency",
] -%}
{%- set measures = [
    "request_count", "usage_missing_count", "input_tokens", "output_tokens", "cost_amount", "cost_unpriced_count", "charge_amount",
    "charge_unpriced_count",
] -%}
{%- set conversation = ["sign", "tenant_id", "conversation_id"] -%}
{%- set parts = ref('fct_conversation_cost') -%}
{{ config(one_row_per(columns)) }}

with unconsumed as (
    {{ unconsumed(ref('int_entries_measured')) }}
),

news as (
    {{ folded('unconsumed', parts_by, measures) }}
),

-- Each conversation that is touched is taken out as it was and put back as it is. What it is, the parts say, which hold the
-- same batches as this mart when it has run; what it was is the same without the news.
sides as (
    {%- if var("refold", false) %}
    select
        1 as sign,
        n.*
    from news as n
    {%- elif not is_incremental() %}
    select
        1 as sign,
        {{ (parts_by + measures) | join(",\n        ") }}
    from {{ parts }}
    {%- else %}
    select
        s.sign,
        p.*
    from (select distinct tenant_id, conversation_id from news) as n
    cross join lateral (
        select
            {{ (parts_by + measures) | join(",\n            ") }}
        from {{ parts }} as c
        where c.tenant_id = n.tenant_id and c.conversation_id = n.conversation_id and c.conversation_id <> ''
        offset 0
    ) as p
    cross join (values (1), (-1)) as s (sign)
    union all
    select
        -1,
        {{ parts_by | join(",\n        ") }},
        {%- for measure in measures %}
        -{{ measure }}{{ "," if not loop.last }}
        {%- endfor %}
    from news
    {%- endif %}
),

stood as (
    select
        sign,
        {{ parts_by | join(",\n        ") }},
        {%- for measure in measures %}
        sum({{ measure }}) as {{ measure }}{{ "," if not loop.last }}
        {%- endfor %}
    from sides
    where conversation_id <> ''
    group by sign, {{ parts_by | join(", ") }}
),

described as (
    {{ main_of_conversations('stood', conversation) }}
),

-- What a conversation came to, by currencies; without what a withdrawn request left behind.
came_to as (
    select
        {{ conversation | join(",\n        ") }},
        cost_currency,
        charge_currency,
        {%- for measure in measures %}
        sum({{ measure }}) as {{ measure }},
        {%- endfor %}
        sum(sum(cost_unpriced_count)) over whole as whole_cost_unpriced_count,
        sum(sum(charge_unpriced_count)) over whole as whole_charge_unpriced_count
    from stood
    group by {{ conversation | join(", ") }}, cost_currency, charge_currency
    window whole as (partition by {{ conversation | join(", ") }})
),

stated as (
    select
        *,
        (row_number() over (partition by {{ conversation | join(", ") }}, charge_currency order by cost_currency) = 1)::integer
        as charge_conversation_count
    from came_to
    where request_count <> 0 or input_tokens <> 0 or output_tokens <> 0 or cost_amount <> 0 or charge_amount <> 0
),

whole as (
    select
        s.tenant_id,
        d.first_date,
        d.language,
        d.provider,
        d.model,
        s.cost_currency,
        s.charge_currency,
        s.sign as conversation_count,
        s.sign * s.charge_conversation_count as charge_conversation_count,
        s.sign * (d.language_count > 1)::integer as several_languages_count,
        {%- for measure in measures %}
        s.sign * s.{{ measure }} as {{ measure }},
        {%- endfor %}
        s.sign * s.whole_cost_unpriced_count as whole_cost_unpriced_count,
        s.sign * s.whole_charge_unpriced_count as whole_charge_unpriced_count
    from stated as s
    join described as d on d.sign = s.sign and d.tenant_id = s.tenant_id and d.conversation_id = s.conversation_id
),

folded as (
    {{ folded('whole', columns, ["conversation_count", "charge_conversation_count", "several_languages_count"] + measures + [
        "whole_cost_unpriced_count", "whole_charge_unpriced_count",
    ]) }}
)

select * from folded
