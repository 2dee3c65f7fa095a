{# How a tag is written: `name=value`; a tag without a value is its name, as senders of a bare list have it. #}
{% macro tag_text(name, value) -%}
    case when {{ value }} = '' then {{ name }} else {{ name }} || '=' || {{ value }} end
{%- endmacro %}

{#
The part of a number that falls on one of several tags: equal, cut to 12 decimal places, and what is left over on the first,
so that the parts make the whole. Cut towards zero, so that what takes back has the parts of what it takes back. Rounded to 24
places before, which no amount has: Postgres divides large numbers to fewer than 12 otherwise.
#}
{% macro equal_part(number, place, tag_count) -%}
    case
        when {{ tag_count }} = 1 then {{ number }}::numeric
        when {{ place }} = 1 then {{ number }} - ({{ tag_count }} - 1) * trunc(round({{ number }}::numeric, 24) / {{ tag_count }}, 12)
        else trunc(round({{ number }}::numeric, 24) / {{ tag_count }}, 12)
    end
{%- endmacro %}

{# What both marts of tags sum. #}
{% macro tag_measures() -%}
    {{ return([
        "request_count", "usage_missing_count", "input_tokens", "output_tokens",
        "cost_amount", "cost_unpriced_count", "cost_unpriced_tokens",
        "charge_amount", "charge_unpriced_count", "charge_unpriced_tokens",
    ]) }}
{%- endmacro %}
