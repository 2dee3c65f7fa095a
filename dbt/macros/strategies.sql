{# incremental_strategy: additive. An upsert that adds: what is not in the key is a number that folds. #}
{% macro get_incremental_additive_sql(arg_dict) %}
    {%- set keys = arg_dict["unique_key"] -%}
    {%- set columns = arg_dict["dest_columns"] | map(attribute="name") | list -%}
    insert into {{ arg_dict["target_relation"] }} as t ({{ columns | join(", ") }})
    select {{ columns | join(", ") }}
    from {{ arg_dict["temp_relation"] }}
    {# In the order of the key, so that neighbours are found on the same index pages. #}
    order by {{ keys | join(", ") }}
    on conflict ({{ keys | join(", ") }}) do update set
    {%- for column in columns if column not in keys %}
        {{ column }} = t.{{ column }} + excluded.{{ column }}{{ "," if not loop.last }}
    {%- endfor %}
{% endmacro %}

{# incremental_strategy: upsert. The newest row counts; rows that did not change are not written. #}
{% macro get_incremental_upsert_sql(arg_dict) %}
    {%- set keys = arg_dict["unique_key"] -%}
    {%- set columns = arg_dict["dest_columns"] | map(attribute="name") | list -%}
    {%- set others = columns | reject("in", keys) | list -%}
    insert into {{ arg_dict["target_relation"] }} as t ({{ columns | join(", ") }})
    select {{ columns | join(", ") }}
    from {{ arg_dict["temp_relation"] }}
    order by {{ keys | join(", ") }}
    on conflict ({{ keys | join(", ") }}) do update set
    {%- for column in others %}
        {{ column }} = excluded.{{ column }}{{ "," if not loop.last }}
    {%- endfor %}
    where (t.{{ others | join(", t.") }}) is distinct from (excluded.{{ others | join(", excluded.") }})
{% endmacro %}
