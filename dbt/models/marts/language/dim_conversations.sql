{%- set keys = ["tenant_id", "conversation_id"] -%}
{{ config(materialized="standing_view", incremental_strategy="none", unique_key=keys) }}

with parts as (
    select *
    from {{ ref('fct_conversation_cost') }}
    where conversation_id <> ''
),

described as (
    {{ main_of_conversations('parts', keys) }}
)

select * from described
