-- The one way to the bytes of a dead letter, which may hold what a sender should not have sent. Commands and the API read them
-- through it, so that who may see them is one grant, and the table's own column needs none.
create or replace function ledger.dead_letter_bytes(of_letter bigint) returns bytea
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select d.bytes
    from ledger.dead_letters as d
    where d.dead_letter_id = of_letter
$$;

-- How long they are, which whoever lists dead letters may know.
create or replace function ledger.dead_letter_size(of_letter bigint) returns integer
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select octet_length(d.bytes)
    from ledger.dead_letters as d
    where d.dead_letter_id = of_letter
$$;
