-- Assumption: a sum is short exactly where the counts beside it say so: a bucket in which every request is unpriced holds
-- no charge at all.
-- Money lost: a default price for unknown models would hide that they were never billed as agreed; the whole charge of
-- every request of a model that the price book lacks.
select *
from {{ ref('fct_cost_daily') }}
where request_count > 0 and charge_unpriced_count = request_count and charge_amount <> 0
