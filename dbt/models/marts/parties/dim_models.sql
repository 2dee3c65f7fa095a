{{ config(unique_key=["provider", "model"], indexes=[{"columns": ["provider", "model"], "unique": true}]) }}
-- Made after the facts, so that every model of a fact is here. depends_on: {{ ref('fct_cost_daily') }}

with models as (
    select * from {{ ref('stg_ledger__models') }}
)

select * from models
