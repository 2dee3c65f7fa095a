{#
materialized: standing_view. A view that stays while its text stays: made new by each run, as dbt's own would be, it would be
gone for a moment, wait for whoever reads it, and make everybody after them wait. The hash of the text is a comment on the
view's rule, where nothing else looks.
#}
{% materialization standing_view, adapter="postgres" %}
    {%- set relation = this.incorporate(type="view") -%}
    {%- set wanted = local_md5(sql) -%}
    {%- set query -%}
        select obj_description(r.oid, 'pg_rewrite')
        from pg_rewrite as r
        where r.ev_class = to_regclass('{{ relation }}') and r.rulename = '_RETURN'
    {%- endset -%}
    {%- set found = run_query(query).columns[0].values() | first -%}

    {# Readers have a view of it, or are to have none. #}
    {%- set own = not has_reader_view() or adapter.get_relation(
        this.database, this.schema, "own_" ~ this.identifier
    ) is not none -%}
    {{ run_hooks(pre_hooks, inside_transaction=False) }}
    {{ run_hooks(pre_hooks, inside_transaction=True) }}
    {%- do tell_steps({"model": this.identifier, "opening": [], "question": none, "writing": none, "closing": []}) -%}
    {%- if found == wanted and own -%}
        {% call statement("main") -%}
            select 1 where false
        {%- endcall %}
    {%- else -%}
        {%- if config.get("contract").enforced -%}
            {{ get_assert_columns_equivalent(sql) }}
        {%- endif -%}
        {% call statement("main") -%}
            drop view if exists {{ relation }} cascade;
            create view {{ relation }} as
            {{ sql }};
            comment on rule "_RETURN" on {{ relation }} is '{{ wanted }}'
        {%- endcall %}
    {%- endif -%}
    {% do persist_docs(relation, model) %}
    {%- if found != wanted or not own -%}
        {# They make the view of readers. #}
        {{ run_hooks(post_hooks, inside_transaction=True) }}
    {%- endif -%}
    {{ adapter.commit() }}
    {{ return({"relations": [relation]}) }}
{% endmaterialization %}
