-- question: Which model changed its price, when, and by which source?
-- asked by: finance
-- one row per: card since a day, the newest first, with the card that it follows
with cards as (
    select
        card_id,
        book,
        provider,
        model,
        tenant_id,
        currency,
        effective_at,
        recorded_at,
        is_withdrawal,
        source_address,
        checked_on,
        body,
        lag(card_id) over of_model as follows_card_id,
        lag(body) over of_model as body_before
    from ledger.cards
    window of_model as (
        partition by book, provider, provider_account, deployment, model, tenant_id
        order by effective_at, recorded_at
    )
)

select
    book,
    provider,
    model,
    tenant_id,
    currency,
    effective_at,
    recorded_at,
    is_withdrawal,
    card_id,
    follows_card_id,
    follows_card_id is not null and body is distinct from body_before as is_changed,
    source_address,
    checked_on
from cards
where effective_at >= now() - interval '{{ var("ago", "90 days") }}'
order by effective_at desc, provider, model, card_id
limit {{ var("rows", "50") }}
