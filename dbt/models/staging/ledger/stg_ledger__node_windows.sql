with source as (
    select * from {{ source('ledger', 'node_windows') }}
),

renamed as (
    select
        -- ids
        event_key,
        batch_id,
        node_id,
        tenant_id,

        -- times
        starts_at,
        ends_at,

        -- what it is; null where the node did not say
        body ->> 'gpu_model' as gpu_model,
        (body ->> 'gpu_count')::integer as gpu_count,
        body ->> 'mig_profile' as mig_profile,
        body ->> 'region' as region,
        coalesce(body ->> 'provider', '') as provider,
        coalesce(body ->> 'model', '') as reported_model,

        -- what it used; null where the node did not say
        (body ->> 'energy_joules')::bigint as energy_joules
    from source
)

select * from renamed
