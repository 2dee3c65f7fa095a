{#
What the signals hold against history. Each number is here and nowhere else; docs/spikes.md says how it was chosen.
#}

{# Days of history that a day is held against. #}
{% macro signal_history_days() %}{{ return(28) }}{% endmacro %}

{# Before so many hours of history a tenant's own past says too little: nothing is signalled. #}
{% macro signal_least_hours() %}{{ return(72) }}{% endmacro %}

{#
What an hour must be above its usual amount before anybody is woken, by charge currency; the empty text is any other.
`--vars '{signal_minimums: {USD: 20}}'` sets others.
#}
{% macro signal_minimums() -%}
    {{ return(var("signal_minimums", {"USD": 5, "EUR": 5, "GBP": 5, "CHF": 5, "JPY": 750, "CNY": 35, "INR": 420, "": 5})) }}
{%- endmacro %}

{# The minimums as rows, for a `with`. #}
{% macro signal_minimum_rows() %}
    select
        v.charge_currency,
        v.minimum_amount::numeric as minimum_amount
    from (
        values
            {%- for currency, amount in signal_minimums().items() %}
            ('{{ currency }}', {{ amount }}){{ "," if not loop.last }}
            {%- endfor %}
    ) as v (charge_currency, minimum_amount)
{% endmacro %}

{#
What a signal must reach. `score` and `spend_score`: how unusual; `hits` and `share`: how many calls, and what part of them;
`calls`: how many a series must have had before its shares mean something.
#}
{% macro signal_limits() -%}
    {{ return({"score": 6, "spend_score": 9, "hits": 12, "share": 0.25, "calls": 100}) }}
{%- endmacro %}

{# Sums of a column over the quarter hour and the hour that end with a bucket of five minutes; see `last_windows`. #}
{% macro sums_of_last(column) %}
        sum({{ column }}) over quarter as {{ column }}_15,
        sum({{ column }}) over hour as {{ column }}_60
{% endmacro %}

{# The windows of `sums_of_last`, for rows that agree on the columns of `by`. #}
{% macro last_windows(by, suffix="") -%}
    quarter{{ suffix }} as (
            partition by {{ by }}
            order by starts_at
            range between interval '10 minutes' preceding and current row
        ),
        hour{{ suffix }} as (
            partition by {{ by }}
            order by starts_at
            range between interval '55 minutes' preceding and current row
        )
{%- endmacro %}

{#
The buckets of five minutes to judge anew: those of unconsumed entries, and those within the hour after them whose windows
reach back to them. Then, per tenant, the stretch that must be read for them.
#}
{% macro touched_buckets(facts) %}
    select distinct
        f.tenant_id,
        f.starts_at
    from (
        select distinct
            u.tenant_id,
            date_bin('5 minutes', u.occurred_at, timestamptz '2020-01-01 00:00:00+00') as starts_at
        from ({{ unconsumed(ref('int_entries_measured')) }}) as u
    ) as n
    cross join lateral (
        select
            r.tenant_id,
            r.starts_at
        from {{ facts }} as r
        where r.tenant_id = n.tenant_id and r.starts_at between n.starts_at and n.starts_at + interval '55 minutes'
        offset 0
    ) as f
{% endmacro %}

{# The rows of a fact of five minutes that the windows of the touched buckets hold. #}
{% macro rows_of_windows(facts) %}
    select f.*
    from (
        select
            tenant_id,
            min(starts_at) as first_at,
            max(starts_at) as last_at
        from touched
        group by tenant_id
    ) as t
    cross join lateral (
        select r.*
        from {{ facts }} as r
        where r.tenant_id = t.tenant_id and r.starts_at between t.first_at - interval '55 minutes' and t.last_at
        offset 0
    ) as f
{% endmacro %}

{#
Whether a row's bucket is to be judged. A hash of them, whatever the planner expects: it knows nothing of how many are touched,
and would compare each row with each bucket. `is true` keeps it from making a join out of this.
#}
{% macro is_touched(alias) -%}
    (({{ alias }}.tenant_id, {{ alias }}.starts_at) in (select t.tenant_id, t.starts_at from touched as t)) is true
{%- endmacro %}

{# Whether a tenant has enough history on a day; a hash, as `is_touched`. #}
{% macro is_known(tenant_id, date) -%}
    (({{ tenant_id }}, {{ date }}) in (select k.tenant_id, k.date from known_tenants as k)) is true
{%- endmacro %}

{# The whole key of a baseline that has no hour, so that it is one look into the index. #}
{% macro is_baseline_of(baseline, row, measure, value="''") -%}
    {{ baseline }}.tenant_id = {{ row }}.tenant_id and {{ baseline }}.date = {{ row }}.date
            and {{ baseline }}.measure = {{ measure }} and {{ baseline }}.feature = {{ row }}.feature
            and {{ baseline }}.api_key_id = {{ row }}.api_key_id and {{ baseline }}.value = {{ value }}
            and {{ baseline }}.charge_currency = '' and {{ baseline }}.hour_of_day = -1
{%- endmacro %}

{#
Signals with `since_at`: when the run of them began that each belongs to. A run goes on over pauses of up to two hours; `by`
are the columns that a run shares. What stands in the table already is looked at for a day back.
#}
{% macro with_since(signals, by) %}
    select
        s.*,
        r.since_at
    from {{ signals }} as s
    join (
        select
            {{ by | join(", ") }},
            starts_at,
            min(known_since_at) over (partition by {{ by | join(", ") }}, run_number) as since_at
        from (
            select
                *,
                count(*) filter (where is_first) over (partition by {{ by | join(", ") }} order by starts_at) as run_number
            from (
                select
                    *,
                    coalesce(
                        starts_at - lag(starts_at) over (partition by {{ by | join(", ") }} order by starts_at)
                        > interval '2 hours', true
                    ) as is_first
                from (
                    select
                        {{ by | join(", ") }},
                        starts_at,
                        starts_at as known_since_at
                    from {{ signals }}
                    {% if is_incremental() %}
                    union all
                    select
                        {% for column in by %}t.{{ column }}, {% endfor %}
                        t.starts_at,
                        t.since_at
                    from (
                        select
                            tenant_id,
                            min(starts_at) as first_at,
                            max(starts_at) as last_at
                        from touched
                        group by tenant_id
                    ) as f
                    join {{ this }} as t
                        on t.tenant_id = f.tenant_id and t.starts_at between f.first_at - interval '1 day' and f.last_at
                    where not exists (
                        select
                        from touched as n
                        where n.tenant_id = t.tenant_id and n.starts_at = t.starts_at
                    )
                    {% endif %}
                ) as known
            ) as marked
        ) as numbered
    ) as r using ({{ by | join(", ") }}, starts_at)
{% endmacro %}
