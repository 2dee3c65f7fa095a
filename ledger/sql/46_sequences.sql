-- What is missing of the senders' counters, apart from what lies among the dead letters: that was set aside, and is not lost.
create or replace view ledger.missing_sequences with (security_invoker = true) as
with aside as (
    select
        d.source,
        range_agg(int8range(d.sequence, d.sequence, '[]')) as numbers
    from ledger.dead_letters as d
    where d.sequence is not null and d.source in (select g.source from ledger.sequence_gaps as g)
    group by d.source
),

gaps as (
    select
        g.source,
        g.run,
        g.noted_at,
        g.accepted_at,
        int8multirange(int8range(g.low, g.high, '[]')) as missing,
        coalesce(a.numbers, '{}'::int8multirange) as aside
    from ledger.sequence_gaps as g
    left join aside as a on a.source = g.source
),

pieces as (
    select g.source, g.run, g.noted_at, g.accepted_at, false as is_set_aside, p.piece
    from gaps as g
    cross join lateral unnest(g.missing - g.aside) as p (piece)
    union all
    select g.source, g.run, g.noted_at, g.accepted_at, true, p.piece
    from gaps as g
    cross join lateral unnest(g.missing * g.aside) as p (piece)
)

select
    source,
    run,
    lower(piece) as low,
    upper(piece) - 1 as high,
    upper(piece) - lower(piece) as number_count,
    noted_at,
    accepted_at,
    is_set_aside
from pieces;

comment on view ledger.missing_sequences is
'One row per stretch of a sender''s counter that did not come as an entry: lost, late, or set aside as a dead letter.';
comment on column ledger.missing_sequences.source is 'Whose counter it is.';
comment on column ledger.missing_sequences.run is 'Which run of it: a counter that begins anew is another run.';
comment on column ledger.missing_sequences.low is 'The first number.';
comment on column ledger.missing_sequences.high is 'The last number.';
comment on column ledger.missing_sequences.number_count is 'How many numbers.';
comment on column ledger.missing_sequences.noted_at is 'When a number behind it was recorded: its age counts from here.';
comment on column ledger.missing_sequences.accepted_at is 'When a person said that it is known to be lost; null: nobody has.';
comment on column ledger.missing_sequences.is_set_aside is 'Whether dead letters hold these numbers.';
