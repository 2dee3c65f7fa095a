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
