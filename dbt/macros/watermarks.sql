{#
How a mart consumes the ledger. Batches are numbered per feed, gapless and in commit order, so one number per feed says
what a model has consumed: everything up to `low`. A run moves `high` to what was committed when the run began, folds the
batches of (low, high], and moves `low` to `high`, all in the model's own transaction: delta and watermark commit together
or not. Timestamps play no part, so an event that comes late, or in a batch that commits late, adds to its old bucket.
#}

{#
What is committed now, written down once for all models of the run: so that they agree with each other when it has ended.
Each run has rows of its own; a second run at the same time freezes what it sees, and neither takes the other back.
#}
{% macro begin_run() %}
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
    create table if not exists {{ target.schema }}.run_batches (
        run_id text not null,
        feed_id integer not null,
        number bigint not null,
        frozen_at timestamptz not null default now(),
        primary key (run_id, feed_id)
    );
    comment on table {{ target.schema }}.run_batches is
    'One row per run in hand and feed: the last batch that the run consumes.';
    {{ freeze_batches() }}
    {%- if execute -%}
        {%- do tell_steps({"run_id": invocation_id, "begin": freeze_batches(), "end": end_run()}) -%}
    {%- endif -%}
{% endmacro %}

{% macro freeze_batches() %}
    {# Of runs that were killed. None lasts a week. #}
    delete from {{ target.schema }}.run_batches where frozen_at < now() - interval '7 days';
    insert into {{ target.schema }}.run_batches (run_id, feed_id, number)
    select
        '{{ invocation_id }}',
        feed_id,
        last_number
    from {{ source('ledger', 'feeds') }}
    where last_number > 0
{% endmacro %}

{% macro end_run() %}
    delete from {{ target.schema }}.run_batches where run_id = '{{ invocation_id }}'
{% endmacro %}

{# Strategies whose models consume batches; the others look at everything each time. #}
{% macro consumes_batches(node) -%}
    {{ return(node.config.incremental_strategy in ["additive", "recomputed"]) }}
{%- endmacro %}

{# The marts with watermarks that a model is made from, straight or by way of models that have no table. #}
{% macro consumed_marts(node) -%}
    {%- set found = [] -%}
    {%- for parent_id in node.depends_on.nodes if parent_id.startswith("model.") -%}
        {%- set parent = graph.nodes[parent_id] -%}
        {%- if consumes_batches(parent) -%}
            {%- do found.append(parent.alias) -%}
        {%- elif parent.config.materialized == "ephemeral" -%}
            {%- do found.extend(consumed_marts(parent)) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(found | unique | sort) }}
{%- endmacro %}

{# Two runs of one model wait for each other; without it both could read a batch before either marks it. #}
{% macro lock_model() %}
    {%- if consumes_batches(model) -%}
    {# Ranges of a key look dear to a planner that knows nothing of the watermarks, and compiling them takes longer than reading them. #}
    set local jit = off;
    {%- if not is_incremental() %}
    {# All that the ledger has is grouped: in memory where it fits, by parts on disk where not, and never sorted, as for the refold. #}
    set local work_mem = '128MB';
    {%- if model.config.incremental_strategy == "additive" %}
    set local enable_sort = off;
    {%- endif %}
    {%- endif %}
    select pg_advisory_xact_lock({{ lock_of(this.identifier) }})
    {#- What it is made from stays as far as it is until this is done. -#}
    {%- for mart in consumed_marts(model) %}, pg_advisory_xact_lock_shared({{ lock_of(mart) }}){% endfor %}
    {%- endif -%}
{% endmacro %}

{% macro lock_of(identifier) -%}
    hashtextextended('{{ this.schema }}.{{ identifier }}', 0)
{%- endmacro %}

{# A statement of its own after the lock, so that its snapshot shows what the run before has committed. #}
{% macro open_batches() %}
    {%- if consumes_batches(model) -%}
    {# A table that is made new holds nothing yet, whatever was consumed into the one before. #}
    {% if not is_incremental() %}
    update {{ source('marts', 'watermarks') }}
    set
        low = 0,
        high = 0
    where model = '{{ this.identifier }}';
    {% endif %}
    {%- set marts = consumed_marts(model) %}
    insert into {{ source('marts', 'watermarks') }} as w (model, feed_id, low, high)
    {%- if marts %}
    {# What is made from other marts goes as far as they are, in every feed that they know: a run of this model alone finds them
       behind, and no further; one that began before another run's last feed finds them ahead. #}
    select
        '{{ this.identifier }}',
        u.feed_id,
        0,
        min(u.low)
    from {{ source('marts', 'watermarks') }} as u
    where u.model in ('{{ marts | join("', '") }}')
    group by u.feed_id
    having count(*) = {{ marts | length }}
    {%- else %}
    select
        '{{ this.identifier }}',
        r.feed_id,
        0,
        r.number
    from {{ target.schema }}.run_batches as r
    where r.run_id = '{{ invocation_id }}'
    {%- endif %}
    on conflict (model, feed_id) do update set
        high = greatest(excluded.high, w.low)
    {%- endif -%}
{% endmacro %}

{% macro close_batches() %}
    {%- if consumes_batches(model) -%}
    update {{ source('marts', 'watermarks') }}
    set low = high
    where model = '{{ this.identifier }}' and low <> high
    {%- endif -%}
{% endmacro %}

{#
The rows of `relation` (one per entry, with posting_period and entry_id) in the batches (low, high] of this model.

A batch's entries are a range of the primary key, and its digests name the partitions to look at. Each `offset 0` keeps the
planner to nested loops over keys: it knows nothing of the watermarks, would guess that a good part of all rows match, and
read the whole ledger for a handful of new batches. A mart that is made from nothing does read the whole ledger, once and from
end to end, so that the planner knows how much it is.
#}
{% macro unconsumed(relation) %}
    {%- set batches = ref('stg_ledger__batches') -%}
    {%- set digests = ref('stg_ledger__batch_digests') -%}
    {%- set marks = source('marts', 'watermarks') -%}
    {% if var("refold", false) -%}
    {{ refolded_from(relation) }}
    {%- elif not is_incremental() -%}
    {{ all_from(relation) }}
    {%- else -%}
    select e.*
    from {{ marks }} as w
    cross join lateral (
        select n.batch_id
        from {{ batches }} as n
        where n.feed_id = w.feed_id and n.batch_number > w.low and n.batch_number <= w.high
        offset 0
    ) as b
    cross join lateral (
        select
            p.batch_id,
            p.posting_period
        from {{ digests }} as p
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
    {%- endif %}
{% endmacro %}

{#
The rows of a relation that names its batch, such as the windows of GPU nodes, in the batches (low, high] of this model;
`relation` needs an index on batch_id.
#}
{% macro unconsumed_by_batch(relation) %}
    {% if var("refold", false) -%}
    {{ refolded_from(relation) }}
    {%- else -%}
    select e.*
    from {{ source('marts', 'watermarks') }} as w
    cross join lateral (
        select n.batch_id
        from {{ ref('stg_ledger__batches') }} as n
        where n.feed_id = w.feed_id and n.batch_number > w.low and n.batch_number <= w.high
        offset 0
    ) as b
    cross join lateral (
        select r.*
        from {{ relation }} as r
        where r.batch_id = b.batch_id
        offset 0
    ) as e
    where w.model = '{{ this.identifier }}'
    {%- endif %}
{% endmacro %}

{#
All rows that a model holds, in place of those that it has yet to consume: with the variable `refold`, the text of an additive
model is what its table must equal. The nightly proof compiles it so, and no run does.
#}
{% macro refolded_from(relation) %}
    {{ all_from(relation, "low") }}
{% endmacro %}

{#
All rows of a relation that names its batch, but for the batches beyond a mark of this model: few, whatever the ledger's size.
An anti-join, since Postgres reads with several processes under one, and with a single one under `not in`.
#}
{% macro all_from(relation, mark="high") %}
    select r.*
    from {{ relation }} as r
    where not exists (
        select
        from ({{ later_batches(mark) }}) as n
        where n.batch_id = r.batch_id
    )
{% endmacro %}

{# The batches beyond what this model holds, at the end of the run unless said. #}
{% macro later_batches(mark="high") %}
    select n.batch_id
    from {{ ref('stg_ledger__batches') }} as n
    left join {{ source('marts', 'watermarks') }} as w on w.feed_id = n.feed_id and w.model = '{{ this.identifier }}'
    where n.batch_number > coalesce(w.{{ mark }}, 0)
{% endmacro %}

{#
All rows of `relation` (one per entry, with tenant_id, occurred_at and batch_id) of the stretches of time in `buckets`, a
relation with tenant_id and the columns named by `starts_at` and `ends_at`; with the columns of `buckets`. Each stretch is
read by the index on tenant and time; a table that is made from nothing reads all entries once instead.
#}
{% macro entries_within(buckets, relation, starts_at="starts_at", ends_at="ends_at") %}
    select
        k.{{ starts_at }} as bucket_starts_at,
        k.{{ ends_at }} as bucket_ends_at,
        e.*
    from {{ buckets }} as k
    {% if is_incremental() -%}
    cross join lateral (
        select r.*
        from {{ relation }} as r
        where r.tenant_id = k.tenant_id and r.occurred_at >= k.{{ starts_at }} and r.occurred_at < k.{{ ends_at }}
        offset 0
    ) as e
    {%- else -%}
    join {{ relation }} as e
        on e.tenant_id = k.tenant_id and e.occurred_at >= k.{{ starts_at }} and e.occurred_at < k.{{ ends_at }}
    {%- endif %}
    where e.batch_id not in ({{ later_batches() }})
{% endmacro %}

{#
The last step of a recomputed model: the rows made anew for the buckets in `touched`. A bucket of which nothing is left is a
row of nulls but for its name, which the strategy takes as: delete what stood there.
#}
{% macro replacing(rows, touched) %}
    select *
    from {{ touched }}
    {{ "left join" if is_incremental() else "join" }} {{ rows }} using ({{ model.config.meta.buckets | join(", ") }})
{% endmacro %}
