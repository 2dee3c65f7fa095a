{# What every usage mart is cut by, besides tenant and time. Amounts of two currencies are never in one row, so never added. #}
{% macro usage_dimensions() -%}
    {{ return([
        "feature", "language", "provider", "model", "route", "lane", "cost_currency", "charge_currency",
    ]) }}
{%- endmacro %}

{# What every usage mart sums; each is a column of int_entries_measured, and each folds. #}
{% macro usage_measures() -%}
    {{ return([
        "entry_count", "evidence_count", "request_count", "estimated_count", "usage_missing_count",
        "uncached_input_tokens", "cache_read_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens",
        "cache_write_other_tokens", "visible_output_tokens", "reasoning_tokens",
        "input_tokens", "output_tokens", "avoided_tokens",
        "cost_amount", "cost_unpriced_count", "cost_unpriced_tokens",
        "charge_amount", "charge_unpriced_count", "charge_unpriced_tokens",
    ]) }}
{%- endmacro %}

{#
Sum measured entries by tenant, a stretch of time and all dimensions. Counts are whole numbers that may pass 2^31; a sum
of bigint is numeric in Postgres, and the cast raises rather than wraps where it would pass 2^63.
#}
{% macro usage_folded(relation, time_column, time_expression) %}
    select
        tenant_id,
        {{ time_expression }} as {{ time_column }},
        {%- for dimension in usage_dimensions() %}
        {{ dimension }},
        {%- endfor %}
        {%- for measure in usage_measures() %}
        {%- if measure.endswith("_amount") %}
        sum({{ measure }}) as {{ measure }}{{ "," if not loop.last }}
        {%- else %}
        sum({{ measure }})::bigint as {{ measure }}{{ "," if not loop.last }}
        {%- endif %}
        {%- endfor %}
    from {{ relation }}
    group by tenant_id, {{ time_expression }}, {{ usage_dimensions() | join(", ") }}
{% endmacro %}
