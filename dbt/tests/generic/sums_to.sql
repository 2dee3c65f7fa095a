{#
Summed by the same columns, this mart (its rows for which `where` holds) and another come to the same, wherever both have
consumed the same batches; a run that was killed between them says nothing. `sums` gives for each sum of this mart the one there.
#}
{% test sums_to(model, to, by, sums, where="true") %}
with same_batches as (
    select count(distinct w.marks) = 1 as is_comparable
    from (
        select array_agg((feed_id, low) order by feed_id)::text as marks
        from {{ source('marts', 'watermarks') }}
        where model in ('{{ model.identifier }}', '{{ to.identifier }}')
        group by model
    ) as w
),

here as (
    select
        {{ by | join(", ") }},
        {%- for column in sums %}
        sum({{ column }}) as here_{{ loop.index }}{{ "," if not loop.last }}
        {%- endfor %}
    from {{ model }}
    where {{ where }}
    group by {{ by | join(", ") }}
),

there as (
    select
        {{ by | join(", ") }},
        {%- for expression in sums.values() %}
        sum({{ expression }}) as there_{{ loop.index }}{{ "," if not loop.last }}
        {%- endfor %}
    from {{ to }}
    group by {{ by | join(", ") }}
)

select *
from here
full join there using ({{ by | join(", ") }})
where
    (select is_comparable from same_batches)
    and (
        {%- for column in sums %}
        coalesce(here_{{ loop.index }}, 0) <> coalesce(there_{{ loop.index }}, 0){{ " or" if not loop.last }}
        {%- endfor %}
    )
{% endtest %}
