-- Who may do what. Commands and the API issue as the operator; rows are only added, numbers move.
grant usage on schema billing to tallystick_operator, tallystick_api, tallystick_billing, tallystick_analyst,
    tallystick_rollup, tallystick_reader;
revoke execute on all functions in schema billing from public;
grant execute on function billing.count_sum(bigint) to tallystick_operator;

grant select on billing.issuers, billing.customers, billing.tax_rates, billing.items, billing.bounds, billing.numbers,
    billing.documents, billing.document_lines, billing.document_taxes, billing.document_credits, billing.voids,
    billing.credited_entries, billing.parked, billing.live_documents, billing.waiting
    to tallystick_operator, tallystick_billing, tallystick_analyst, tallystick_rollup;
grant insert on billing.issuers, billing.customers, billing.tax_rates, billing.items, billing.bounds, billing.numbers,
    billing.documents, billing.document_lines, billing.document_taxes, billing.document_credits, billing.voids,
    billing.credited_entries, billing.parked
    to tallystick_operator;
grant update (last_value) on billing.numbers to tallystick_operator;
-- The API reads what was issued, for tenants too.
grant select on billing.documents, billing.document_lines, billing.document_taxes, billing.document_credits, billing.voids
    to tallystick_api;
grant select on billing.own_documents, billing.own_document_lines to tallystick_reader;
