{%- set columns = [
    "starts_at", "tenant_id", "provider", "model", "cost_state", "currency", "standard_currency",
] -%}
{{ config(
    materialized="standing_view", incremental_strategy="none", unique_key=columns, meta={"hidden_from_readers": ["tenant_id"]}
) }}

with costs as (
    select *
    from (
        {{ self_hosted_costs("starts_at") }}
    ) as c
)

select * from costs
