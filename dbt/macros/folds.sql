{#
How a mart is cut and summed. A column is given as SQL would have it: `feature`, or `hour_at as starts_at`.
#}

{# The name of a column that may be given with an expression in front. #}
{% macro name_of(column) -%}
    {{ return(column.split(" as ")[-1] | trim) }}
{%- endmacro %}

{% macro expression_of(column) -%}
    {%- set parts = column.split(" as ") -%}
    {{ return((parts[:-1] if parts | length > 1 else parts) | join(" as ")) }}
{%- endmacro %}

{% macro names_of(columns) -%}
    {%- set names = [] -%}
    {%- for column in columns -%}
        {%- do names.append(name_of(column)) -%}
    {%- endfor -%}
    {{ return(names) }}
{%- endmacro %}

{#
What `config` wants of a mart that has one row per these columns; none of them may be null. `buckets` are the columns, out of
them, by which a recomputed mart is made anew. `is_fold` says that each bucket hangs on nothing but the ledger, whenever it was
made, so that the refold holds it against that; `uncompared` are columns that say how a row came to be.
#}
{% macro one_row_per(columns, buckets=none, is_fold=true, uncompared=[]) -%}
    {%- set names = names_of(columns) -%}
    {%- set settings = {"unique_key": names, "indexes": [{"columns": names, "unique": true}]} -%}
    {%- if buckets is not none -%}
        {%- do settings.update({
            "incremental_strategy": "recomputed",
            "meta": {"buckets": buckets, "is_fold": is_fold, "uncompared": uncompared},
        }) -%}
    {%- endif -%}
    {{ return(settings) }}
{%- endmacro %}

{#
Sum rows by columns. A sum of bigint is numeric in Postgres: counts, tokens and milliseconds are cast back, which raises
rather than wraps where it would pass 2^63; whatever else is summed keeps the type of its sum.
#}
{% macro folded(relation, columns, measures) %}
    select
        {%- for column in columns %}
        {{ expression_of(column) }} as {{ name_of(column) }},
        {%- endfor %}
        {%- for measure in measures %}
        {%- set name = name_of(measure) %}
        {%- set whole = name.endswith("_count") or name.endswith("_tokens") or name.endswith("_ms") %}
        sum({{ expression_of(measure) }}){{ "::bigint" if whole }} as {{ name }}{{ "," if not loop.last }}
        {%- endfor %}
    from {{ relation }}
    group by {{ range(1, columns | length + 1) | join(", ") }}
{% endmacro %}
