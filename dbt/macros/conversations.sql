{#
The one language and the one model that a conversation is counted under, by `keys`, from rows that have them, local_date, language,
provider, model and request_count. Most requests decide, then the alphabet, with a name that is no model last; `und` is the
language only where no request of the conversation has another. A conversation without a request that stands is none. Nearly
all are of one language and one model, and there is nothing to decide.
#}
{% macro main_of_conversations(relation, keys) %}
    {%- set by_keys = keys | join(", ") -%}
    with spoken as (
        select
            {{ by_keys }},
            language,
            provider,
            model,
            sum(request_count) as request_count,
            min(local_date) filter (where request_count > 0) as first_date,
            max(local_date) filter (where request_count > 0) as last_date,
            count(*) over (partition by {{ by_keys }}) as part_count
        from {{ relation }}
        group by {{ by_keys }}, language, provider, model
        having sum(request_count) > 0
    ),

    weighed as (
        select
            *,
            sum(request_count) over (partition by {{ by_keys }}, language) as language_request_count,
            sum(request_count) over (partition by {{ by_keys }}, provider, model) as model_request_count
        from spoken
        where part_count > 1
    )

    select
        {{ by_keys }},
        language,
        provider,
        model,
        (language <> 'und')::integer::bigint as language_count,
        1::bigint as model_count,
        request_count::bigint as request_count,
        case when language = 'und' then request_count else 0 end::bigint as und_request_count,
        first_date,
        last_date
    from spoken
    where part_count = 1

    union all

    select
        {{ by_keys }},
        (array_agg(language order by language = 'und', language_request_count desc, language))[1],
        (array_agg(provider order by model_request_count desc, model = '', provider, model))[1],
        (array_agg(model order by model_request_count desc, model = '', provider, model))[1],
        count(distinct language) filter (where language <> 'und'),
        count(distinct (provider, model)),
        sum(request_count)::bigint,
        coalesce(sum(request_count) filter (where language = 'und'), 0)::bigint,
        min(first_date),
        max(last_date)
    from weighed
    group by {{ by_keys }}
{% endmacro %}
