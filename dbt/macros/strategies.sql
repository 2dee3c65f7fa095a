{# incremental_strategy: additive. An upsert that adds: what is not in the key is a number that folds. #}
{% macro get_incremental_additive_sql(arg_dict) %}
    {%- set keys = arg_dict["unique_key"] -%}
    {%- set columns = arg_dict["dest_columns"] | map(attribute="name") | list -%}
    insert into {{ arg_dict["target_relation"] }} as t ({{ columns | join(", ") }})
    select {{ columns | join(", ") }}
    from {{ arg_dict["temp_relation"] }} as n
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
    from {{ arg_dict["temp_relation"] }} as n
    order by {{ keys | join(", ") }}
    on conflict ({{ keys | join(", ") }}) do update set
    {%- for column in others %}
        {{ column }} = excluded.{{ column }}{{ "," if not loop.last }}
    {%- endfor %}
    where (t.{{ others | join(", t.") }}) is distinct from (excluded.{{ others | join(", excluded.") }})
{% endmacro %}

{#
incremental_strategy: recomputed. Rows come for whole buckets, and take the place of what stood there; see `replacing`. What
did not change is not written, so a bucket that is touched by each run leaves no dead rows behind.
#}
{% macro get_incremental_recomputed_sql(arg_dict) %}
    {%- set keys = arg_dict["unique_key"] -%}
    {%- set buckets = model.config.meta.buckets -%}
    {%- set columns = arg_dict["dest_columns"] | map(attribute="name") | list -%}
    {%- set inside = columns | reject("in", buckets) | list -%}
    {%- set others = columns | reject("in", keys) | list -%}
    with made as materialized (
        select * from {{ arg_dict["temp_relation"] }} as n
    ),

    {# Of other keys than those that are written, so that the two never meet in a row. #}
    gone as (
        delete from {{ arg_dict["target_relation"] }} as t
        using (
            select distinct {{ buckets | join(", ") }}
            from made
        ) as touched
        where
            (t.{{ buckets | join(", t.") }}) = (touched.{{ buckets | join(", touched.") }})
            and not exists (
                select
                from made as n
                where (n.{{ keys | join(", n.") }}) = (t.{{ keys | join(", t.") }})
                    and num_nonnulls(n.{{ inside | join(", n.") }}) > 0
            )
    )

    insert into {{ arg_dict["target_relation"] }} as t ({{ columns | join(", ") }})
    select {{ columns | join(", ") }}
    from made
    where num_nonnulls({{ inside | join(", ") }}) > 0
    order by {{ keys | join(", ") }}
    on conflict ({{ keys | join(", ") }}) do update set
    {%- for column in others %}
        {{ column }} = excluded.{{ column }}{{ "," if not loop.last }}
    {%- endfor %}
    where (t.{{ others | join(", t.") }}) is distinct from (excluded.{{ others | join(", excluded.") }})
{% endmacro %}
