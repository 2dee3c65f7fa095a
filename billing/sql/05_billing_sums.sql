-- A sum of counts that stays a bigint and refuses what is too large for one, as seals do. The sum of the language carries a
-- wide state for each group, and a month has as many groups as its invoices have lines.
create or replace aggregate billing.count_sum(bigint) (
    sfunc = int8pl,
    stype = bigint,
    combinefunc = int8pl,
    parallel = safe
);
