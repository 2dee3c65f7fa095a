-- What was issued, agreed or refused stays as it was written: rows are added, never changed.
do $$
declare
    kept text;
begin
    foreach kept in array array[
        'bounds',
        'credited_entries',
        'customers',
        'document_credits',
        'document_lines',
        'document_taxes',
        'documents',
        'issuers',
        'items',
        'parked',
        'tax_rates',
        'voids'
    ] loop
        execute format(
            'create or replace trigger refuse_change before update or delete on billing.%I'
            ' for each row execute function ledger.refuse_change()',
            kept
        );
        execute format(
            'create or replace trigger refuse_truncate before truncate on billing.%I'
            ' for each statement execute function ledger.refuse_change()',
            kept
        );
    end loop;
end
$$;

-- Numbers follow each other, by entity and kind, whoever writes them: the first is 1, and none is left out.
create or replace function billing.refuse_gap() returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    given record;
begin
    select n.entity_id, n.kind, n.first, n.last, n.count, coalesce(b.number_value, 0) as before
    into given
    from (
        select
            entity_id,
            kind,
            min(number_value) as first,
            max(number_value) as last,
            count(*) as count
        from new_rows
        group by entity_id, kind
    ) as n
    left join lateral (
        select d.number_value
        from billing.documents as d
        where d.entity_id = n.entity_id and d.kind = n.kind and d.number_value < n.first
        order by d.number_value desc
        limit 1
    ) as b on true
    -- That none is given twice is a key.
    where n.first <> coalesce(b.number_value, 0) + 1 or n.last <> n.first + n.count - 1
    limit 1;
    if found then
        raise exception using
            errcode = 'TS004',
            message = case
                when given.first <> given.before + 1
                    then format('%s %s of %s does not follow %s', given.kind, given.first, given.entity_id, given.before)
                else
                    format('%s of %s: %s numbers from %s to %s', given.kind, given.entity_id, given.count, given.first, given.last)
            end;
    end if;
    return null;
end
$$;

create or replace trigger refuse_gap
after insert on billing.documents
referencing new table as new_rows
for each statement execute function billing.refuse_gap();

-- Only the transaction that issues a document writes its lines, taxes, credits and entries. Lines have no foreign key, which would
-- look each of them up by itself: here their documents are, once a statement, and a document is never deleted.
create or replace function billing.refuse_addition() returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    named text;
    issued text;
begin
    select n.document_id, d.number
    into named, issued
    from (select distinct n.document_id from new_rows as n) as n
    left join billing.documents as d on d.document_id = n.document_id
    where d.written_in is distinct from pg_current_xact_id()::text::bigint
    limit 1;
    if not found then
        return null;
    end if;
    if issued is null then
        raise exception using errcode = 'foreign_key_violation', message = format('there is no document %s', named);
    end if;
    raise exception using
        errcode = 'TS002',
        message = format('%s is issued: nothing is added to it', issued);
end
$$;

create or replace trigger refuse_addition
after insert on billing.document_lines
referencing new table as new_rows
for each statement execute function billing.refuse_addition();

create or replace trigger refuse_addition
after insert on billing.document_taxes
referencing new table as new_rows
for each statement execute function billing.refuse_addition();

create or replace trigger refuse_addition
after insert on billing.document_credits
referencing new table as new_rows
for each statement execute function billing.refuse_addition();

create or replace trigger refuse_addition
after insert on billing.credited_entries
referencing new table as new_rows
for each statement execute function billing.refuse_addition();
