{#
How a mart is written, in place of dbt's own `incremental`: the same promises with fewer questions to the database, as a run
comes every minute and there are many marts. The columns of the new rows are held against the mart's in one statement, and the
strategy writes them. Rows, watermark and hooks are one transaction. A mart that is made new is filled beside the old one, and
takes its place in that transaction.

What a run did to a mart that is there is text that the next run would make again, to the letter: it is told (`tell_steps`) to
whoever listens, and a process that stays runs it without dbt; see tallystick/steps.py.
#}
{% materialization incremental, adapter="postgres" %}
    {%- set existing = load_cached_relation(this) -%}
    {%- set target_relation = this.incorporate(type="table") -%}
    {%- set is_new = existing is none or existing.is_view or should_full_refresh() -%}
    {%- set filled = target_relation if existing is none else make_intermediate_relation(target_relation) -%}
    {%- set backup = make_backup_relation(target_relation, "table" if existing is none else existing.type) -%}
    {%- set question = unconsumed_question() if config.get("incremental_strategy") == "additive" else none -%}
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
            {{ created(filled, sql) }}
        {%- endcall -%}
        {%- do create_indexes(filled) -%}
        {%- if existing is not none -%}
            {%- do adapter.rename_relation(target_relation, backup) -%}
            {%- do adapter.rename_relation(filled, target_relation) -%}
        {%- endif -%}
    {%- else -%}
        {%- set strategy = adapter.get_incremental_strategy_macro(context, config.get("incremental_strategy")) -%}
        {%- set writing = strategy({
            "target_relation": target_relation,
            "temp_relation": "(\n" ~ sql ~ "\n)",
            "unique_key": config.get("unique_key"),
            "dest_columns": same_columns(sql, target_relation),
            "incremental_predicates": none,
        }) -%}
        {%- call statement("main") -%}
            {# Nothing was posted since the last run. A recomputed mart may be touched by something that is in no batch. #}
            {{ writing if question is none or run_query(question).columns[0][0] else "select where false" }}
        {%- endcall -%}
        {%- do tell_steps({
            "model": this.identifier,
            "opening": [lock_model() | trim, open_batches() | trim] | select | list,
            "question": question,
            "writing": writing,
            "closing": [close_batches() | trim] | select | list,
        }) -%}
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

{#
A table of the rows of a statement, in the order of its key: a tenant's day, or a node's hour, lies on pages of its own, and what is
added to it later touches few. They are summed first and sorted after, not the other way round: that is what `offset 0` is for. Held to
the contract as dbt holds it, and then made in one go where no column is forbidden to be null: into a table that is there Postgres
reads with one process only.
#}
{% macro created(relation, sql) -%}
    {%- set ordered -%}
        select *
        from (
            {{ sql }}
            offset 0
        ) as r
        order by {{ config.get("unique_key") | join(", ") }}
    {%- endset -%}
    {%- set constrained = model.columns.values() | selectattr("constraints") | list or model.constraints -%}
    {%- if config.get("contract").enforced and not constrained -%}
        {{ get_assert_columns_equivalent(sql) }}
        create table {{ relation }} as (
            {{ ordered }}
        )
    {%- else -%}
        {{ get_create_table_as_sql(False, relation, ordered) }}
    {%- endif -%}
{%- endmacro %}

{# Say what was run, as an event of dbt's with one line of JSON. #}
{% macro tell_steps(steps) -%}
    {%- do log("tallystick steps " ~ tojson(steps)) -%}
{%- endmacro %}

{# The columns of a mart, as the strategies want them; raises where the rows that are to be written have others. #}
{% macro same_columns(sql, relation) -%}
    {%- set rows = make_temp_relation(relation).identifier -%}
    {%- do run_query("create temporary view " ~ rows ~ " as\n" ~ sql) -%}
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
            where attrelid = 'pg_temp.{{ rows }}'::regclass and attnum > 0
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
    {%- do run_query("drop view pg_temp." ~ rows) -%}
    {{ return(columns) }}
{%- endmacro %}

{# Are there batches that this model has yet to consume? #}
{% macro unconsumed_question() -%}
    select exists (
        select
        from {{ source('marts', 'watermarks') }}
        where model = '{{ this.identifier }}' and low <> high
    )
{%- endmacro %}
