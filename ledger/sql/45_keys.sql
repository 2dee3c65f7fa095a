-- Tell the API's processes that what they remember of keys may be wrong: one was revoked or given another end, or whom a
-- source speaks for has changed. Whoever changes it, by whatever way, and at the commit.
create or replace function ledger.tell_of_keys() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pg_notify('tallystick_keys', '');
    return null;
end
$$;

-- Not for last_used_at, which moves all the time, nor for a new key, which nobody remembers.
create or replace trigger tell_of_keys
after delete or update of revoked_at, expires_at, scopes, tenant_id, source, secret_hash on ledger.api_keys
for each statement execute function ledger.tell_of_keys();

create or replace trigger tell_of_keys
after update on ledger.sources
for each statement execute function ledger.tell_of_keys();

create or replace trigger tell_of_keys
after insert or delete or update on ledger.source_tenants
for each statement execute function ledger.tell_of_keys();
