with models as (
    select * from {{ ref('stg_ledger__models') }}
),

aliases as (
    select * from {{ ref('stg_ledger__model_aliases') }}
),

names as (
    select
        provider,
        model as name,
        model
    from models
    union
    select
        provider,
        alias,
        model
    from aliases
)

select * from names
