{#
What a mart holds equals the fold of the ledger up to the mart's own watermark, to the last digit, in every bucket.

`by` and `sums` give for each column of the mart what it is in ledger.entries, written out a second time rather than
taken from the models: a mistake in a model does not excuse itself.
#}
{% test equals_ledger(model, by, sums) %}
with consumed as (
    select e.*
    from {{ source('ledger', 'entries') }} as e
    join {{ source('ledger', 'batches') }} as b on b.batch_id = e.batch_id
    join {{ source('marts', 'watermarks') }} as w
        on w.feed_id = b.feed_id and b.number <= w.low and w.model = '{{ model.identifier }}'
),

ledger as (
    select
        {%- for column, expression in by.items() %}
        {{ expression }} as {{ column }},
        {%- endfor %}
        {%- for column, expression in sums.items() %}
        coalesce({{ expression }}, 0) as {{ column }}{{ "," if not loop.last }}
        {%- endfor %}
    from consumed
    group by {{ range(1, by | length + 1) | join(", ") }}
),

mart as (
    select
        {{ by | join(", ") }},
        {%- for column in sums %}
        sum({{ column }}) as {{ column }}{{ "," if not loop.last }}
        {%- endfor %}
    from {{ model }}
    group by {{ range(1, by | length + 1) | join(", ") }}
)

select
    {{ by | join(", ") }},
    {%- for column in sums %}
    l.{{ column }} as ledger_{{ column }},
    m.{{ column }} as mart_{{ column }}{{ "," if not loop.last }}
    {%- endfor %}
from ledger as l
full join mart as m using ({{ by | join(", ") }})
where
    {%- for column in sums %}
    coalesce(l.{{ column }}, 0) <> coalesce(m.{{ column }}, 0){{ " or" if not loop.last }}
    {%- endfor %}
{% endtest %}
