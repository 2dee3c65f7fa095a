{# Descriptions become comments in the database, for whoever looks there; written only where they differ, as runs are frequent. #}
{% macro postgres__persist_docs(relation, model, for_relation, for_columns) %}
    {%- set wanted = {"": model.description | trim} -%}
    {%- for name, column in model.columns.items() -%}
        {%- do wanted.update({name: column.description | trim}) -%}
    {%- endfor -%}
    {%- set query -%}
        select
            coalesce(a.attname, '') as name,
            coalesce(trim(d.description), '') as description
        from pg_description as d
        left join pg_attribute as a on a.attrelid = d.objoid and a.attnum = d.objsubid and d.objsubid > 0
        where d.objoid = '{{ relation }}'::regclass and d.classoid = 'pg_class'::regclass
    {%- endset -%}
    {%- set present = {} -%}
    {%- for row in run_query(query) -%}
        {%- do present.update({row[0] or "": row[1]}) -%}
    {%- endfor -%}
    {%- set differing = [] -%}
    {%- for name, text in wanted.items() if text != present.get(name, "") -%}
        {%- do differing.append(name) -%}
    {%- endfor -%}
    {%- if differing -%}
        {{ default__persist_docs(relation, model, for_relation, for_columns) }}
    {%- endif -%}
{% endmacro %}
