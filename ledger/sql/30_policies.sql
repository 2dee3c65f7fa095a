-- Who sees which rows. Every role that may select from entries has a policy here; a test holds the two lists together.
-- Tenants' readers have none: they have rights on the views of their own rows, 40_views.sql, and on no table.
alter table ledger.entries enable row level security;

drop policy if exists all_tenants on ledger.entries;
create policy all_tenants on ledger.entries
for select to tallystick_analyst, tallystick_billing, tallystick_api, tallystick_operator, tallystick_rollup
using (true);

drop policy if exists own_tenants on ledger.entries;

-- Nodes are the platform's own: whoever gets rights on them later by mistake sees none without a policy of its own.
alter table ledger.node_windows enable row level security;

drop policy if exists the_platform on ledger.node_windows;
create policy the_platform on ledger.node_windows
for select to tallystick_analyst, tallystick_billing, tallystick_operator, tallystick_rollup
using (true);

-- A reader's tenants stand in a table by login, never in a setting that the session itself could change.
alter table ledger.reader_tenants enable row level security;
drop policy if exists own_rows on ledger.reader_tenants;
drop policy if exists administration on ledger.reader_tenants;
create policy administration on ledger.reader_tenants
for all to tallystick_operator
using (true)
with check (true);
