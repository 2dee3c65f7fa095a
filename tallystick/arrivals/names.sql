-- Models and keys of tags that arrived in the window and in none of the seven days before: how many, not which.
with models as (
    select distinct model as name
    from {entries} as e
    where model is not null
),

tag_keys as (
    select distinct k.name
    from {entries} as e
    cross join lateral jsonb_object_keys(case when jsonb_typeof(e.tags) = 'object' then e.tags else '{}' end) as k (name)
),

-- Names that are in use are found at once; only a new one reads the week.
new_models as (
    select count(*) as names
    from models as m
    where not exists (select from {entries_week} as e where e.model = m.name)
),

new_tag_keys as (
    select count(*) as names
    from tag_keys as t
    where not exists (select from {entries_week} as e where e.tags ? t.name)
)

select
    'all' as kind,
    '' as subject,
    (
        select coalesce(sum(created_count), 0)::bigint
        from {batches_week} as b
    ) as requests_before,
    new_models.names::double precision as new_model_count,
    new_tag_keys.names::double precision as new_tag_key_count
from new_models
cross join new_tag_keys
