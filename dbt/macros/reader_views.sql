{#
What a tenant's reader sees of a mart: marts.own_<mart>, made with the mart for each one that has tenant_id. As ledger/sql/40_views.sql
says of entries: with the owner's rights behind a barrier, sifted by login, and values as expressions, of which there are no
statistics. What we pay a provider is not in it, so no column with `cost` in its name but those that the mart's meta names in
`shown_to_readers`, as FOCUS calls cost what the tenant is charged; nor what its meta names in `hidden_from_readers`. A mart
that hides tenant_id has none, such as those about the platform's own nodes.
#}
{% macro make_reader_view() %}
    {%- set view = api.Relation.create(
        database=this.database, schema=this.schema, identifier="own_" ~ this.identifier, type="view"
    ) -%}
    {%- set hidden = model.config.meta.get("hidden_from_readers", []) -%}
    {%- set named = model.config.meta.get("shown_to_readers", []) -%}
    {%- set is_there = is_incremental() and adapter.get_relation(view.database, view.schema, view.identifier) is not none -%}
    {%- if execute and is_there and named -%}
        {#- One that was made before its mart named them lacks them. -#}
        {%- set has = adapter.get_columns_in_relation(view) | map(attribute="name") | list -%}
        {%- set is_there = named | reject("in", has) | list | length == 0 -%}
    {%- endif -%}
    {%- if execute and has_reader_view() and not is_there -%}
    {%- set shown = [] -%}
    {%- for column in adapter.get_columns_in_relation(this) if column.name not in hidden -%}
        {%- if "cost" not in column.name or column.name in named -%}
            {%- do shown.append(column) -%}
        {%- endif -%}
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

{# Has this mart a view for readers? One without tenant_id, or that hides it, has none. #}
{% macro has_reader_view() %}
    {{ return("tenant_id" in model.columns and "tenant_id" not in model.config.meta.get("hidden_from_readers", [])) }}
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
