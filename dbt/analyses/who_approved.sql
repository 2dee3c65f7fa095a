-- question: Who made this correction, who agreed, and why?
-- asked by: auditors, finance
-- one row per: correction, the newest first; `request` narrows it to one request
select
    correction_id,
    kind,
    tenant_id,
    request_id,
    at,
    actor,
    second_person,
    reason,
    entry_count,
    effects
from ledger.corrections
where ('{{ var("request", "") }}' = '' or request_id = '{{ var("request", "") }}') and ('{{ var("tenant", "") }}' = '' or tenant_id = '{{ var("tenant", "") }}')
order by at desc, correction_id
limit {{ var("rows", "20") }}
