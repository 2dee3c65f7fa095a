{#
What the signals hold against history.
#}

{# Days of history that a day is held against. #}
{% macro signal_history_days() %}{{ return(28) }}{% endmacro %}

{# Before so many hours of history a tenant's own past says too little: nothing is signalled. #}
{% macro signal_least_hours() %}{{ return(72) }}{% endmacro %}

{#
What an hour must be above its usual amount before anybody is woken, by charge currency; the empty text is any other.
`--vars '{signal_minimums: {USD: 20}}'` sets others, and leaves those that it does not name.
#}
{% macro signal_minimums() -%}
    {%- set minimums = {"USD": 5, "EUR": 5, "GBP": 5, "CHF": 5, "JPY": 750, "CNY": 35, "INR": 420, "": 5} -%}
    {%- for currency, amount in var("signal_minimums", {}).items() -%}
        {%- if not modules.re.fullmatch("([A-Z]{3})?", currency) or amount is not number or amount <= 0 -%}
            {{ exceptions.raise_compiler_error("signal_minimums: " ~ currency ~ ": no code of a currency, or not a number above 0") }}
        {%- endif -%}
        {%- do minimums.update({currency: amount}) -%}
    {%- endfor -%}
    {{ return(minimums) }}
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

{# What a signal must reach; docs/spikes.md says what each is, and why. `--vars '{signal_limits: {spend_hour: 4}}'` sets others. #}
{% macro signal_limits() -%}
    {%- set limits = {
        "score": 4.5, "calls_10": 8, "calls_15": 8, "calls_60": 20, "rise": 0.25, "beyond_peak": 1.5, "cache_left": 0.2,
        "cache_usual": 0.15, "user_share": 0.5, "user_usual": 0.05, "history_calls": 100,
        "spend_hour": 3, "spend_quarter": 2.5, "spend_score": 5, "spend_calls_15": 8, "spend_calls_60": 12,
        "excess_peak": 2, "excess_peak_calls": 12, "excess_usual": 3, "excess_usual_calls": 20,
    } -%}
    {%- for name, value in var("signal_limits", {}).items() -%}
        {%- if name not in limits or value is not number or value < 0 -%}
            {{ exceptions.raise_compiler_error("signal_limits: " ~ name ~ ": no such limit, or not a number from 0 on") }}
        {%- endif -%}
        {%- do limits.update({name: value}) -%}
    {%- endfor -%}
    {{ return(limits) }}
{%- endmacro %}

{#
How far so many hits of so many calls are above a share, in standard deviations: the signed root of the likelihood ratio, which
keeps its meaning for small shares and few calls, where (hits - mean) / deviation does not. With a dispersion of d, d calls say as much as one.
#}
{% macro deviations(hits, calls, share, dispersion=1) -%}
    (
            case
                when {{ hits }} <= {{ calls }} * {{ share }} then 0
                else sqrt(greatest(0, 2 / {{ dispersion }} * (
                    {{ hits }} * ln({{ hits }} / ({{ calls }} * {{ share }}))
                    + case
                        when {{ calls }} > {{ hits }}
                            then ({{ calls }} - {{ hits }}) * ln(({{ calls }} - {{ hits }}) / ({{ calls }} * (1 - {{ share }})))
                        else 0
                    end
                )))
            end
        )
{%- endmacro %}

{# A share that can be computed with: what never was counts as one call in a hundred. #}
{% macro between_chances(share, least=0.01) -%}
    least(greatest({{ share }}, {{ least }}), 0.99)
{%- endmacro %}

{#
How much wider hours are spread about their share than chance alone would have it, at least 1: people come in sessions, and
versions on days. Of sums over hours: hits, calls, their squares, and their products.
#}
{% macro dispersion(chance) -%}
    greatest(1, (squared_hits - 2 * {{ chance }} * hits_by_calls + {{ chance }} * {{ chance }} * squared_calls)
        / ({{ chance }} * (1 - {{ chance }}) * calls))
{%- endmacro %}

{# The rows of a fact of five minutes on days of `past_days`, each once, however many days they are the history of. #}
{% macro past_rows(facts) %}
    {% if is_incremental() -%}
    select f.*
    from (
        select distinct
            tenant_id,
            day
        from past_days
    ) as d
    cross join lateral (
        select r.*
        from {{ facts }} as r
        where
            r.tenant_id = d.tenant_id
            and r.starts_at >= d.day::timestamp at time zone 'UTC'
            and r.starts_at < (d.day + 1)::timestamp at time zone 'UTC'
        offset 0
    ) as f
    {%- else -%}
    select *
    from {{ facts }}
    {%- endif %}
{% endmacro %}

{# The windows that shares are judged in, in minutes. #}
{% macro signal_windows() %}{{ return([10, 15, 60]) }}{% endmacro %}

{# Sums of a column over the ten minutes, the quarter hour and the hour that end with a bucket of five minutes; see `last_windows`. #}
{% macro sums_of_last(column) %}
        sum({{ column }}) over ten as {{ column }}_10,
        sum({{ column }}) over quarter as {{ column }}_15,
        sum({{ column }}) over hour as {{ column }}_60
{% endmacro %}

{# The windows of `sums_of_last`, for rows that agree on the columns of `by`. #}
{% macro last_windows(by, suffix="") -%}
    ten{{ suffix }} as (
            partition by {{ by }}
            order by starts_at
            range between interval '5 minutes' preceding and current row
        ),
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
reach back to them; from nothing all that the facts have, since each entry is in one. Then, per tenant, the stretch that must be read for them.
#}
{% macro touched_buckets(facts) %}
    {%- set entries = unconsumed(ref('int_entries_measured')) -%}
    {% if is_incremental() %}
    select distinct
        f.tenant_id,
        f.starts_at
    from (
        select distinct
            u.tenant_id,
            date_bin('5 minutes', u.occurred_at, timestamptz '2020-01-01 00:00:00+00') as starts_at
        from ({{ entries }}) as u
    ) as n
    cross join lateral (
        select
            r.tenant_id,
            r.starts_at
        from {{ facts }} as r
        where r.tenant_id = n.tenant_id and r.starts_at between n.starts_at and n.starts_at + interval '55 minutes'
        offset 0
    ) as f
    {% else %}
    select distinct
        tenant_id,
        starts_at
    from {{ facts }}
    {% endif %}
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
