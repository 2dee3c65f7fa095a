{{ config(materialized="standing_view", incremental_strategy="none", unique_key=["provider", "model", "language"]) }}

with models as (
    select * from {{ ref('model_tokenizers') }}
),

languages as (
    select * from {{ ref('tokenizer_languages') }}
),

counts as (
    select * from {{ ref('tokenizer_token_counts') }}
),

-- As the ledger writes a language: with its script, and without one where it is the usual one.
tags as (
    select
        flores_code,
        language || '-' || script as language,
        name
    from languages
    union all
    select
        flores_code,
        language,
        name
    from languages
    where is_usual_script
),

english as (
    select
        tokenizer,
        token_count
    from counts
    where flores_code = 'eng_Latn'
),

premiums as (
    select
        m.provider,
        m.model,
        t.language,
        t.name as language_name,
        m.tokenizer,
        c.token_count,
        e.token_count as english_token_count,
        round(c.token_count::numeric / e.token_count, 3) as premium
    from models as m
    join counts as c on c.tokenizer = m.tokenizer
    join english as e on e.tokenizer = m.tokenizer
    join tags as t on t.flores_code = c.flores_code
)

select * from premiums
