{#
How a mart consumes the ledger. Batches are numbered per feed, gapless and in commit order, so one number per feed says
what a model has consumed: everything up to `low`. A run moves `high` to what is committed now, adds the entries of
(low, high], and moves `low` to `high`, all in the model's own transaction: delta and watermark commit together or not.
Timestamps play no part, so an event that comes late, or in a batch that commits late, adds to its old bucket.
#}

{% macro make_watermarks() %}
    create table if not exists {{ target.schema }}.watermarks (
        model text not null,
        feed_id integer not null,
        low bigint not null,
        high bigint not null,
        primary key (model, feed_id),
        check (low between 0 and high)
    );
    comment on table {{ target.schema }}.watermarks is
    'One row per model and feed: the model holds all batches of the feed up to number low. high = low except inside a run.';
{% endmacro %}

{# Two runs of one model wait for each other; without it both could read a batch before either marks it. #}
{% macro lock_model() %}
    select pg_advisory_xact_lock(hashtextextended('{{ this.schema }}.{{ this.identifier }}', 0))
{% endmacro %}

{# A statement of its own after the lock, so that its snapshot shows what the run before has committed. #}
{% macro open_batches() %}
    insert into {{ source('marts', 'watermarks') }} as w (model, feed_id, low, high)
    select
        '{{ this.identifier }}',
        f.feed_id,
        0,
        f.last_number
    from {{ source('ledger', 'feeds') }} as f
    on conflict (model, feed_id) do update set
        {# A table that is made new holds nothing yet, whatever was consumed into the one before. #}
        {% if not is_incremental() %}low = 0,{% endif %}
        high = greatest(excluded.high, w.low)
{% endmacro %}

{% macro close_batches() %}
    update {{ source('marts', 'watermarks') }}
    set low = high
    where model = '{{ this.identifier }}' and low <> high
{% endmacro %}

{#
The rows of `relation` (one per entry, with posting_period and entry_id) in the batches (low, high] of this model.

A batch's entries are a range of the primary key, and its digests name the partitions to look at. Each `offset 0` keeps the
planner to nested loops over keys: it knows nothing of the watermarks, would guess that a good part of all rows match, and
read the whole ledger for a handful of new batches.
#}
{% macro unconsumed(relation) %}
    select e.*
    from {{ source('marts', 'watermarks') }} as w
    cross join lateral (
        select n.batch_id
        from {{ ref('stg_ledger__batches') }} as n
        where n.feed_id = w.feed_id and n.batch_number > w.low and n.batch_number <= w.high
        offset 0
    ) as b
    cross join lateral (
        select
            p.batch_id,
            p.posting_period
        from {{ ref('stg_ledger__batch_digests') }} as p
        where p.batch_id = b.batch_id
        offset 0
    ) as d
    cross join lateral (
        select r.*
        from {{ relation }} as r
        where
            r.posting_period = d.posting_period
            and r.entry_id >= d.batch_id * 65536
            and r.entry_id < (d.batch_id + 1) * 65536
        offset 0
    ) as e
    where w.model = '{{ this.identifier }}'
{% endmacro %}
