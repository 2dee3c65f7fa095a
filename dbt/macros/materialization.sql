{#
How a mart is written, in place of dbt's own `incremental`: the same promises with fewer questions to the database, as a run
comes every minute and there are many marts. The new rows go to a temporary table, its columns are held against the mart's in
one statement, the strategy writes. Rows, watermark and hooks are one transaction. A mart that is made new is filled beside the
old one, and takes its place in that transaction.
#}
{% materialization incremental, adapter="postgres" %}
    {%- set existing = load_cached_relation(this) -%}
    {%- set target_relation = this.incorporate(type="table") -%}
    {%- set is_new = existing is none or existing.is_view or should_full_refresh() -%}
    {%- set filled = target_relation if existing is none else make_intermediate_relation(target_relation) -%}
    {%- set backup = make_backup_relation(target_relation, "table" if existing is none else existing.type) -%}
    {%- set rows = make_temp_relation(target_relation) -%}
    {# Models without a table are read through: one that is named twice would be read whole first, whatever is asked of it. #}
    {%- set sql = modules.re.sub("(__dbt__cte__\\w+) as \\(", "\\1 as not materialized (", sql) -%}

    {%- if is_new and existing is not none -%}
        {# What a run that was killed may have left; before the transaction, which begins with the hooks. #}
        {{ drop_relation_if_exists(load_cached_relation(filled)) }}
        {{ drop_relation_if_exists(load_cached_relation(backup)) }}
    {%- endif -%}
    {{ run_hooks(pre_hooks, inside_transaction=False) }}
    {{ run_hooks(pre_hooks, inside_transaction=True) }}

    {%- if is_new -%}
        {%- call statement("main") -%}
            {{ get_create_table_as_sql(False, filled, sql) }}
        {%- endcall -%}
        {%- do create_indexes(filled) -%}
        {%- if existing is not none -%}
            {%- do adapter.rename_relation(target_relation, backup) -%}
            {%- do adapter.rename_relation(filled, target_relation) -%}
        {%- endif -%}
    {%- elif config.get("incremental_strategy") == "additive" and not has_unconsumed() -%}
        {# Nothing was posted since the last run. A recomputed mart may be touched by something that is in no batch. #}
        {%- call statement("main") -%}
            select where false
        {%- endcall -%}
    {%- else -%}
        {%- do run_query("create temporary table " ~ rows.identifier ~ " on commit drop as\n" ~ sql) -%}
        {%- set columns = same_columns(rows, target_relation) -%}
        {%- set strategy = adapter.get_incremental_strategy_macro(context, config.get("incremental_strategy")) -%}
        {%- call statement("main") -%}
            {{ strategy({
                "target_relation": target_relation,
                "temp_relation": rows.identifier,
                "unique_key": config.get("unique_key"),
                "dest_columns": columns,
                "incremental_predicates": none,
            }) }}
        {%- endcall -%}
    {%- endif -%}

    {%- do persist_docs(target_relation, model) -%}
    {{ run_hooks(post_hooks, inside_transaction=True) }}
    {%- do adapter.commit() -%}
    {%- if is_new and existing is not none -%}
        {%- do adapter.drop_relation(backup) -%}
    {%- endif -%}
    {{ run_hooks(post_hooks, inside_transaction=False) }}
    {{ return({"relations": [target_relation]}) }}
{% endmaterialization %}

{# The columns of a mart, as the strategies want them; raises where the rows that are to be written have others. #}
{% macro same_columns(rows, relation) -%}
    {%- set query -%}
        select
            coalesce(m.attname, r.attname)::text as name,
            format_type(m.atttypid, m.atttypmod) as in_the_mart,
            format_type(r.atttypid, r.atttypmod) as in_the_model
        from (
            select *
            from pg_attribute
            where attrelid = '{{ relation }}'::regclass and attnum > 0 and not attisdropped
        ) as m
        full join (
            select *
            from pg_attribute
            where attrelid = 'pg_temp.{{ rows.identifier }}'::regclass and attnum > 0
        ) as r on r.attname = m.attname
        order by m.attnum
    {%- endset -%}
    {%- set columns = [] -%}
    {%- for row in run_query(query) -%}
        {%- if row[1] is none or row[2] is none or row[1] != row[2] -%}
            {%- do exceptions.raise_compiler_error(
                "column " ~ row[0] ~ " is " ~ (row[1] or "not there") ~ " in the mart and " ~ (row[2] or "not there")
                ~ " in the model: `tallystick rollup --rebuild " ~ relation.identifier ~ "`"
            ) -%}
        {%- endif -%}
        {%- do columns.append({"name": row[0]}) -%}
    {%- endfor -%}
    {{ return(columns) }}
{%- endmacro %}

{# Are there batches that this model has yet to consume? #}
{% macro has_unconsumed() -%}
    {%- set query -%}
        select exists (
            select
            from {{ source('marts', 'watermarks') }}
            where model = '{{ this.identifier }}' and low <> high
        )
    {%- endset -%}
    {{ return(run_query(query).columns[0][0]) }}
{%- endmacro %}
