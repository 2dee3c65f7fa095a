-- What each role of the running system may do. Nobody but the owner may update or delete facts, and nobody has rights on
-- partitions, which inherit no policies.
grant usage on schema ledger to tallystick_writer, tallystick_api, tallystick_operator, tallystick_analyst,
    tallystick_billing, tallystick_rollup, tallystick_letters, tallystick_reader;

-- Postgres opens each new function to everybody. Those of triggers need no right of whoever moves the rows.
revoke execute on all functions in schema ledger from public;

-- The writer: adds facts, and moves the few rows that say how far it has come.
grant select, insert on ledger.entries, ledger.event_keys, ledger.batches, ledger.batch_digests, ledger.raw_usage,
    ledger.requests, ledger.dead_letters, ledger.node_windows, ledger.feeds, ledger.rate_sets, ledger.rates, ledger.subjects
    to tallystick_writer;
grant update (rank, posting_period, entry_id, entry_count, occurred_at, best_event_key, counted) on ledger.requests to tallystick_writer;
-- A correction, who made it and who agreed are written with its rows.
grant select, insert on ledger.corrections, ledger.approvals to tallystick_writer;
grant update (state, used_at) on ledger.approvals to tallystick_writer;
grant select, insert on ledger.differences to tallystick_writer;
grant update (repeats, last_at, bytes, reason, detail, event_key, first_hash, second_hash, resolved_at, resolution,
    resolved_batch_id, resolved_by) on ledger.dead_letters
    to tallystick_writer;
-- What a person did and what came of it are one transaction where it posts.
grant insert on ledger.acts to tallystick_writer;
-- Earlier versions let it change a feed's name, and use every sequence.
revoke update on ledger.feeds from tallystick_writer;
revoke all on all sequences in schema ledger from tallystick_writer, tallystick_operator;
grant update (epoch, next_position, last_number, last_hash, posted_until, start_position, start_count, suspect_position,
    suspect_count) on ledger.feeds to tallystick_writer;
grant select on ledger.versions, ledger.tenants, ledger.tenant_versions, ledger.entities, ledger.sources,
    ledger.source_tenants, ledger.provider_accounts, ledger.models, ledger.model_aliases, ledger.model_name_rules,
    ledger.periods, ledger.cards, ledger.exchange_rates
    to tallystick_writer;
grant select on ledger.loads to tallystick_writer;
-- An earlier version let it read staged events, which the operator hands it.
revoke select on ledger.load_rows from tallystick_writer;
-- An earlier version let it read the hashes of keys, which only the API looks up.
revoke select on ledger.api_keys from tallystick_writer;
grant usage on sequence ledger.batches_batch_id_seq to tallystick_writer;

-- The operator: commands and the scheduler. Parties, prices, periods and keys; facts only by reading.
-- Not `on all tables`: once there are partitions that would reach them too.
do $$
declare
    found record;
begin
    for found in
        select c.oid::regclass as name, c.relispartition
        from pg_class as c
        where c.relnamespace = 'ledger'::regnamespace and c.relkind in ('r', 'p', 'v')
    loop
        -- Views of readers' own rows show anybody else nothing.
        if found.relispartition or starts_with(found.name::text, 'ledger.own_') then
            execute format('revoke all on %s from tallystick_operator', found.name);
        else
            execute format('grant select on %s to tallystick_operator', found.name);
        end if;
    end loop;
end
$$;
grant insert, update on ledger.versions, ledger.entities, ledger.tenants, ledger.tenant_versions, ledger.sources,
    ledger.source_tenants, ledger.provider_accounts, ledger.models, ledger.model_aliases, ledger.api_keys, ledger.periods
    to tallystick_operator;
-- Earlier versions let it move a feed's chain, and link a subject anew.
revoke insert, update on ledger.feeds, ledger.subjects, ledger.reader_tenants from tallystick_operator;
grant update (starts_here, next_position, epoch) on ledger.feeds to tallystick_operator;
grant insert on ledger.subjects, ledger.reader_tenants to tallystick_operator;
grant delete on ledger.source_tenants, ledger.reader_tenants, ledger.model_name_rules, ledger.model_aliases to tallystick_operator;
grant insert on ledger.model_name_rules, ledger.cards, ledger.exchange_rates, ledger.node_rates, ledger.acts, ledger.rate_sets, ledger.rates
    to tallystick_operator;
-- Who asked, and for what, stays as it was written; only the answer is added.
grant insert on ledger.approvals, ledger.corrections to tallystick_operator;
grant update (state, decided_by, decided_at, decision_reason, used_at) on ledger.approvals to tallystick_operator;
grant update (owner, note, resolved_at, resolution, resolved_batch_id, resolved_by) on ledger.dead_letters
    to tallystick_operator;
revoke all on function ledger.dead_letter_bytes(bigint), ledger.dead_letter_size(bigint) from public;
-- The bytes are for a group of their own, of which the operator is a member until somebody takes that back.
revoke execute on function ledger.dead_letter_bytes(bigint) from tallystick_operator;
grant execute on function ledger.dead_letter_size(bigint) to tallystick_operator;
revoke select on ledger.dead_letters from tallystick_operator;
grant execute on function ledger.dead_letter_bytes(bigint) to tallystick_letters;
-- A repricing names its act on every row, before the act is written.
grant usage on sequence ledger.acts_act_id_seq to tallystick_operator;
-- A projection that the scheduler takes from new batches; nothing else depends on it.
grant insert, delete on ledger.canary_beats to tallystick_operator;
grant insert, update, delete on ledger.sequence_marks, ledger.sequence_runs, ledger.sequence_gaps to tallystick_operator;
-- Made from the ledger, and made anew where they no longer fit; the results are added, and clean ones go after two days.
grant insert, update, delete on ledger.proof_marks, ledger.proof_totals to tallystick_operator;
grant insert, delete on ledger.proofs to tallystick_operator;
-- Results are added; runs go after five weeks, and their results with them.
grant insert, delete on ledger.check_runs, ledger.check_results to tallystick_operator;
grant insert, update on ledger.loads, ledger.load_rows to tallystick_operator;
-- What was staged and never committed may go; of what was committed, only a person's retention may.
grant delete on ledger.load_rows to tallystick_operator;
revoke all on function ledger.make_partitions(date) from public;
grant execute on function ledger.make_partitions(date) to tallystick_operator;
revoke all on function ledger.close_partition(date), ledger.open_partition(date), ledger.what_depends_on(text, date),
    ledger.is_retired(date)
    from public;
grant execute on function ledger.close_partition(date), ledger.open_partition(date), ledger.what_depends_on(text, date),
    ledger.is_retired(date), ledger.is_partition_closed(date), ledger.period_totals(text, date)
    to tallystick_operator;
grant insert on ledger.seals, ledger.seal_lines to tallystick_operator;
-- Months that leave: an export is noted by whoever made it; the other steps are the owner's functions'.
grant insert on ledger.retirements to tallystick_operator;
grant execute on function ledger.retire_partition(date, boolean, text, text), ledger.begin_restore(date),
    ledger.finish_restore(date, text, text), ledger.differing_batches(date)
    to tallystick_operator;
grant execute on function ledger.drop_raw_usage(date), ledger.expire_dead_letters(timestamptz, timestamptz, integer),
    ledger.erase_subject(text, text)
    to tallystick_operator;
grant select on ledger.retirements, ledger.retired_months
    to tallystick_writer, tallystick_analyst, tallystick_billing, tallystick_rollup;

-- The API reads; what it writes goes through the writer or the operator, but for when a key was last used.
grant update (last_used_at) on ledger.api_keys to tallystick_api;
grant select on ledger.versions, ledger.tenants, ledger.tenant_versions, ledger.entities, ledger.sources,
    ledger.source_tenants, ledger.api_keys, ledger.periods, ledger.feeds, ledger.batches, ledger.entries
    to tallystick_api;
-- Numbers alone, of what the API may not read itself.
revoke all on function ledger.watched() from public;
grant execute on function ledger.watched() to tallystick_api, tallystick_operator, tallystick_analyst;
-- Is the database as new as the code? Readiness asks.
grant select on ledger.alembic_version to tallystick_api;

grant select on ledger.corrections, ledger.differences, ledger.statements_that_differ,
    ledger.responses_under_several_requests
    to tallystick_api, tallystick_analyst, tallystick_billing,
    tallystick_rollup;

-- People and reports.
grant select on ledger.entries, ledger.entry_lines, ledger.batches, ledger.batch_digests, ledger.feeds, ledger.requests,
    ledger.event_keys, ledger.rate_sets, ledger.rates, ledger.cards, ledger.exchange_rates, ledger.models,
    ledger.model_aliases, ledger.model_name_rules, ledger.sources, ledger.source_tenants, ledger.provider_accounts,
    ledger.tenants, ledger.tenant_versions, ledger.entities, ledger.periods, ledger.node_windows, ledger.node_rates, ledger.versions,
    ledger.seals, ledger.seal_lines, ledger.loads
    to tallystick_analyst, tallystick_billing, tallystick_rollup;
grant select on ledger.proofs, ledger.check_runs, ledger.check_results
    to tallystick_analyst, tallystick_billing, tallystick_rollup;
grant select on ledger.sequence_marks, ledger.sequence_runs, ledger.sequence_gaps, ledger.missing_sequences,
    ledger.canary_beats
    to tallystick_analyst, tallystick_rollup;
grant select (dead_letter_id, origin, bytes_hash, reason, detail, event_key, first_hash, second_hash, batch_id, first_at,
    last_at, repeats, owner, note, resolved_at, resolution, resolved_batch_id, resolved_by, position, sent_tenant_id, source,
    event_id, sequence) on ledger.dead_letters to tallystick_operator, tallystick_analyst, tallystick_rollup;

-- Tenants' readers: the views of their own rows, and nothing else.
revoke all on ledger.entries, ledger.reader_tenants from tallystick_reader;
grant select on ledger.own_tenants, ledger.own_entries, ledger.own_entry_lines to tallystick_reader;
-- The views that readers have of marts sift by it; the rollup itself is no reader, and sees none.
grant select on ledger.own_tenants to tallystick_rollup;
