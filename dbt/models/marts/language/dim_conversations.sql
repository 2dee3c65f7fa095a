{{ config(materialized="standing_view", incremental_strategy="none", unique_key=["tenant_id", "conversation_id"]) }}

with parts as (
    select
        tenant_id,
        conversation_id,
        language,
        provider,
        model,
        sum(request_count) as request_count,
        min(local_date) as first_date,
        max(local_date) as last_date
    from {{ ref('fct_conversation_cost') }}
    where conversation_id <> ''
    group by tenant_id, conversation_id, language, provider, model
    having sum(request_count) > 0
),

weighed as (
    select
        *,
        sum(request_count) over (partition by tenant_id, conversation_id, language) as language_request_count,
        sum(request_count) over (partition by tenant_id, conversation_id, provider, model) as model_request_count
    from parts
),

-- Most requests decide, then the alphabet, with a name that is no model last; `und` is the language only where no request of
-- the conversation has another.
described as (
    select
        tenant_id,
        conversation_id,
        (array_agg(language order by language = 'und', language_request_count desc, language))[1] as language,
        (array_agg(provider order by model_request_count desc, model = '', provider, model))[1] as provider,
        (array_agg(model order by model_request_count desc, model = '', provider, model))[1] as model,
        count(distinct language) filter (where language <> 'und') as language_count,
        count(distinct (provider, model)) as model_count,
        sum(request_count)::bigint as request_count,
        coalesce(sum(request_count) filter (where language = 'und'), 0)::bigint as und_request_count,
        min(first_date) as first_date,
        max(last_date) as last_date
    from weighed
    group by tenant_id, conversation_id
)

select * from described
