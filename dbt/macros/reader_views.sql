{#
What a tenant's reader sees of a mart: marts.own_<mart>, made with the mart for each one that has tenant_id. As ledger/sql/40_views.sql
says of entries: with the owner's rights behind a barrier, sifted by login, and values as expressions, of which there are no
statistics. What we pay a provider is not in it, nor what the mart's meta names in `hidden_from_readers`; a mart that
hides tenant_id has none, such as those about the platform's own nodes.
#}
{% macro make_reader_view() %}
    {%- set view = api.Relation.create(
        database=this.database, schema=this.schema, identifier="own_" ~ this.identifier, type="view"
    ) -%}
    {%- set is_there = is_incremental() and adapter.get_relation(view.database, view.schema, view.identifier) is not none -%}
    {%- set hidden = model.config.meta.get("hidden_from_readers", []) -%}
    {%- if execute and "tenant_id" in model.columns and "tenant_id" not in hidden and not is_there -%}
    {%- set shown = [] -%}
    {%- for column in adapter.get_columns_in_relation(this) if "cost" not in column.name and column.name not in hidden -%}
        {%- do shown.append(column) -%}
    {%- endfor -%}
    drop view if exists {{ view }};
    create view {{ view }}
    with (security_barrier = true)
    as
    select
        {%- for column in shown %}
        {{ without_statistics(column) }} as {{ column.name }}{{ "," if not loop.last }}
        {%- endfor %}
    from {{ this }}
    where tenant_id in (select o.tenant_id from {{ source('ledger', 'own_tenants') }} as o);
    comment on view {{ view }} is
    '{{ ("Of the login''s tenants; without what providers cost. " ~ model.description | trim) | replace("'", "''") }}';
    {%- for column in shown if column.name in model.columns %}
    comment on column {{ view }}.{{ column.name }} is
    '{{ model.columns[column.name].description | trim | replace("'", "''") }}';
    {%- endfor %}
    {# The grants that every table of the schema gets reach views too; this one shows nobody else anything. #}
    revoke all on {{ view }} from tallystick_analyst, tallystick_billing, tallystick_operator;
    grant select on {{ view }} to tallystick_reader
    {%- endif -%}
{% endmacro %}

{# A column as an expression of the same value. #}
{% macro without_statistics(column) -%}
    {%- set type = column.dtype | lower -%}
    {%- if type.startswith("character") or type in ["text", "bpchar", "char", "varchar"] -%}
        {{ return(column.name ~ "::text || ''") }}
    {%- elif type in ["smallint", "integer", "bigint", "numeric", "double precision", "real"] -%}
        {{ return(column.name ~ " + 0") }}
    {%- elif type == "boolean" -%}
        {{ return("not not " ~ column.name) }}
    {%- endif -%}
    {{ return(column.name) }}
{%- endmacro %}
