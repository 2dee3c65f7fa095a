{{ config(unique_key=["tenant_id"], indexes=[{"columns": ["tenant_id"], "unique": true}]) }}
-- Made after the facts, so that every tenant of a fact is here. depends_on: {{ ref('fct_cost_daily') }}

with tenants as (
    select * from {{ ref('stg_ledger__tenants') }}
),

versions as (
    select * from {{ ref('stg_ledger__tenant_versions') }}
),

-- In force now; a tenant that has not begun yet is shown as it will begin.
in_force as (
    select distinct on (tenant_id)
        tenant_id,
        entity_id,
        name,
        time_zone,
        charge_currency,
        status
    from versions
    order by tenant_id, effective_at > now(), case when effective_at > now() then effective_at end, effective_at desc
),

described as (
    select
        t.tenant_id,
        v.name,
        v.entity_id,
        v.time_zone,
        v.charge_currency,
        v.status,
        t.starts_at,
        t.ends_at,
        t.merged_into,
        t.merged_at
    from tenants as t
    join in_force as v on v.tenant_id = t.tenant_id
)

select * from described
