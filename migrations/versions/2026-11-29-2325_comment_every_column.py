"""Say of every column what it is.

Why: engineers ask the database at night, and it should answer for itself. Comments only: nothing else changes.
"""

from collections.abc import Sequence
from typing import Final

from alembic import op

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

COMMENTS: Final = {
    "ledger.versions": {
        "is_only": "Always true: there is one row.",
        "calendar": "Raised by a change of periods or of tenants' zones.",
        "parties": "Raised by a change of tenants, sources, accounts, models or names.",
        "prices": "Raised by a new card or exchange rate.",
        "budgets": "Raised by a change of budgets.",
    },
    "ledger.entities": {
        "entity_id": "Chosen by the operator.",
        "name": "As it stands on invoices.",
        "created_at": "When it was added.",
    },
    "ledger.tenants": {
        "created_at": "When it was added.",
        "merged_into": "Who pays for its usage from merged_at on.",
    },
    "ledger.tenant_versions": {
        "tenant_id": "Whose version it is.",
        "entity_id": "Who invoices the tenant.",
        "name": "For people; entries do not hold it.",
        "time_zone": "Of its days, months and budgets.",
        "charge_currency": "What it is charged in, ISO 4217.",
        "status": "active; suspended: recorded, nothing more admitted; left: gone, late usage is still recorded.",
        "recorded_at": "When the change was written down.",
    },
    "ledger.sources": {
        "kind": "gateway, node, load (a backfill) or commands.",
        "speaks_for_all": "For every tenant; otherwise source_tenants lists them.",
        "created_at": "When it was registered.",
        "ended_at": "From here on what it sends is a dead letter; null while it may speak.",
    },
    "ledger.source_tenants": {
        "source": "Who speaks.",
        "tenant_id": "For whom.",
    },
    "ledger.provider_accounts": {
        "provider_account": "As events name it.",
        "provider": "Who bills it.",
        "currency": "What it is billed in, ISO 4217.",
        "created_at": "When it was added.",
    },
    "ledger.models": {
        "provider": "Who serves it, as events name it.",
        "output_tokens_max": "A report above it is impossible; null where unknown.",
        "created_at": "When it was added.",
    },
    "ledger.model_aliases": {
        "provider": "Whose name it is.",
        "model": "The canonical id.",
        "source": "Who says that the two are one: an import with its version, a command, a proposal.",
    },
    "ledger.subjects": {
        "subject_id": "What entries hold: random, and nothing by itself.",
        "tenant_id": "Whose user it is.",
        "created_at": "When it was first seen.",
    },
    "ledger.api_keys": {
        "tenant_id": "The tenant that it belongs to, whose word then rules over the body's; or null.",
        "source": "The source that it belongs to; or null.",
        "created_at": "When it was made.",
        "revoked_at": "From here on it opens nothing; null while it is good.",
        "note": "What it is for, for people.",
    },
    "ledger.periods": {
        "tenant_id": "Whose month it is.",
        "starts_at": "Inclusive: local midnight of the first day.",
        "state": "open: takes entries; closed: the database refuses them.",
    },
    "ledger.cards": {
        "card_id": "Order of recording.",
        "book": "cost: what we owe the provider; charge: what the tenant owes us.",
        "provider": "Whose model it prices.",
        "provider_account": "Only usage of this account; null: any.",
        "deployment": "Only usage of this deployment; null: any.",
        "currency": "Of all its prices, ISO 4217.",
        "source_address": "Where the prices stand: an address or a document.",
    },
    "ledger.rate_sets": {
        "rate_set_id": "What entries name.",
        "content_hash": "Over everything that it says, its rates included.",
        "book": "cost or charge.",
        "currency": "Of its rates and of what they price.",
        "is_free": "Every price in it is zero, and is meant to be.",
        "recorded_at": "When an entry first needed it.",
    },
    "ledger.rates": {
        "rate_set_id": "The set that it belongs to.",
        "meter": "What is counted.",
    },
    "ledger.feeds": {
        "feed_id": "What batches name.",
        "kind": "kafka: a partition; api: a replica; file, load: a run of one; commands: corrections.",
        "last_number": "Of its newest batch; 0 before the first.",
        "last_hash": "Of its newest batch: the head of its chain.",
        "start_count": "How often a worker has started at start_position.",
        "suspect_count": "How often the message at suspect_position was in hand.",
        "created_at": "When it was first claimed.",
    },
    "ledger.batches": {
        "feed_id": "Where it came from.",
        "first_position": "Where it began to read; null for feeds without positions.",
        "created_count": "Events that became rows other than evidence.",
        "duplicate_count": "Events that were there with the same content.",
        "evidence_count": "Reports that beat nothing, kept as rows that move nothing.",
        "conflict_count": "Events that were there with other content.",
        "dead_letter_count": "Events that could not be posted.",
        "entry_count": "Rows that it wrote to ledger.entries.",
        "recorded_at": "The database's clock in its first statement.",
        "previous_hash": "Of the batch before it in its feed; empty for the first.",
        "hash": "Over feed, number, previous hash, positions, counts and digests.",
        "hash_version": "How the hash was made.",
    },
    "ledger.batch_digests": {
        "batch_id": "The batch that wrote the rows.",
        "posting_period": "The month that they were posted in.",
        "row_count": "How many there are.",
        "charge_sums": "Amount by currency, decimal text.",
    },
    "ledger.event_keys": {
        "content_hash": "Tells a copy from a conflict.",
        "hash_version": "How the content hash was made.",
        "batch_id": "The batch that claimed it.",
    },
    "ledger.requests": {
        "key": "Identity of one upstream attempt that somebody bills, or of a fee.",
        "entry_id": "Of its first row, which corrections name.",
        "entry_count": "How many rows its first statement made.",
        "best_event_key": "The statement that counts.",
    },
    "ledger.entries": {
        "entry_id": "batch_id x 65,536 + the row's place in its batch: order of recording inside a feed.",
        "batch_id": "The batch that wrote it.",
        "event_key": "Of the event, fee or correction that it comes from; its rows share it.",
        "request_key": "Of the request that it is about; null where it claims none.",
        "kind": "usage: the first report; true_up: a better one minus what stood; adjustment: a corrected price; reversal; fee: for an operation; evidence: moves nothing.",
        "tenant_id": "Who pays: the tenant as sent, or who it was merged into by occurred_at.",
        "sent_tenant_id": "The tenant as sent.",
        "source": "The sender, as its events name it.",
        "request_id": "One upstream attempt that somebody bills, as the gateway named it.",
        "operation_id": "The logical request that attempts belong to.",
        "attempt_kind": "first, retry, fallback, continuation or hedge.",
        "response_id": "The provider's own name for the answer.",
        "provider": "Who served the call.",
        "provider_account": "The account that the provider bills.",
        "deployment": "The deployment or capacity that served it.",
        "requested_model": "The model that was asked for, as sent.",
        "reported_model": "The model that answered, as sent.",
        "model": "The canonical id; null where the name is nobody's.",
        "requested_service_tier": "The tier that was asked for.",
        "service_tier": "The tier that was served: it selects the price.",
        "region": "Where it was served.",
        "node_id": "The node that served it, for own models.",
        "operation": "What kind of call: chat, embeddings, rerank, ...",
        "feature": "What it was for.",
        "language": "Primary subtag plus script of the text; und where unknown.",
        "sent_language": "The language tag as sent.",
        "route": "The route in the gateway.",
        "lane": "interactive or batch; never selects a price.",
        "api_key_id": "The caller's key in the gateway, by its public name.",
        "conversation_id": "The conversation that it belongs to.",
        "app_version": "The version of the calling application.",
        "trace_id": "The trace that it belongs to.",
        "status": "ok, error, cancelled, interrupted, refused, in_progress or void.",
        "stop_reason": "Why the model stopped, as sent.",
        "cache_result": "miss, exact_hit, semantic_hit (both the gateway's own) or prefix_hit.",
        "basis": "reported by whoever counted, or estimated.",
        "reservation_id": "The reservation that it was admitted under.",
        "subject_id": "The tenant's user, linked to the sender's hash in ledger.subjects until erased.",
        "tags": "The sender's own labels.",
        "attempt": "Which try of the operation it is, from 1, as sent.",
        "revision": "Which version of the report it is, as sent; 0 where none is.",
        "is_final": "False for a report of a call that goes on.",
        "uncached_input_tokens": "Text input that came from no cache and went into none.",
        "cache_read_tokens": "Text input read from the provider's cache.",
        "cache_write_5m_tokens": "Input written to a cache for five minutes.",
        "cache_write_1h_tokens": "Input written to a cache for an hour.",
        "cache_write_other_tokens": "Input written to a cache for a time that nobody stated.",
        "visible_output_tokens": "Text output that the caller sees.",
        "reasoning_tokens": "Output that the caller does not see.",
        "cost_currency": "ISO 4217; null while nobody knows it.",
        "cost_rate_set_id": "The prices that made cost_amount; null where none did.",
        "charge_currency": "The tenant's, ISO 4217.",
        "charge_rate_set_id": "The prices that made charge_amount; null where none did.",
        "usage_flags": "States of the counts that people should see, such as usage_missing; ingest/README.md lists them.",
        "max_output_tokens": "The cap that the caller had set.",
        "delivered_output_tokens": "What reached the caller before it left.",
        "provider_calls": "Calls that the gateway says it made for this one.",
        "latency_ms": "From the request to the end of the answer.",
        "ttft_ms": "From the request to the first token.",
        "queue_ms": "Waiting at the node.",
        "prefill_ms": "Reading the input at the node.",
        "decode_ms": "Writing the output at the node.",
        "actor": "Who corrected.",
    },
    "ledger.raw_usage": {
        "received_month": "First day of the month of recording, UTC: the partition.",
        "entry_id": "The first row that was made from it.",
        "flavour": "Whose usage object it is.",
        "parser_version": "Of the reader that made the counts.",
    },
    "ledger.dead_letters": {
        "dead_letter_id": "What people name it by.",
        "reason": "A stable code; ingest/README.md lists them.",
        "detail": "One line for a person: the field and the rule.",
        "batch_id": "The batch that set it aside first.",
        "first_at": "When it was first set aside.",
        "last_at": "When it last came again.",
        "repeats": "How often it came again.",
        "owner": "Who looks after it.",
        "note": "What they found.",
        "resolved_at": "When somebody was done with it; null while open.",
    },
    "ledger.node_windows": {
        "event_key": "Identity of the report.",
        "tenant_id": "The platform tenant that the node belongs to, as sent.",
        "source": "Who sent it.",
        "node_id": "Which node it is about.",
        "starts_at": "Inclusive, by the node's clock.",
        "ends_at": "Exclusive.",
        "body": "What the node said, whole.",
        "batch_id": "The batch that brought it.",
    },
    "ledger.acts": {
        "act_id": "Order of acts.",
        "at": "When, by the database's clock.",
        "actor": "Who.",
        "act": "What, as noun.verb.",
        "detail": "With which values.",
        "reason": "Why, in the actor's words.",
        "second_person": "Who approved, where two are needed.",
    },
    "ledger.reader_tenants": {
        "login": "A login of the group tallystick_reader.",
        "tenant_id": "A tenant whose rows it may see.",
    },
    "ledger.routines": {
        "name": "Of the file.",
        "sha256": "Of its text as it was applied.",
    },
    "quotas.budgets": {
        "budget_id": "Chosen by whoever makes it.",
        "feature": "Only this feature; null: any.",
        "model": "Only this canonical model; null: any.",
        "route": "Only this route; null: any.",
        "lane": "Only this lane; null: any.",
        "api_key_id": "Only calls with this key of the sender; null: any.",
        "subject_id": "Only this user; null: any.",
        "window_kind": "day, days, week, month, anchored_month or lifetime.",
        "hardness": "hard: refuses; soft: warns; shadow: only counts.",
        "unknown_price": "What to do with a call whose price nobody knows: refuse or admit.",
        "missing_estimate": "What to do with a call without an estimate: refuse or admit.",
        "created_at": "When it was made.",
    },
    "quotas.windows": {
        "budget_id": "Whose window it is.",
        "currency": "Of money; null for tokens and requests.",
        "last_batch_id": "The newest batch that moved it.",
    },
    "quotas.excess": {
        "excess_id": "Order of recording.",
        "budget_id": "Whose window it is.",
        "group_key": "Which group of it; empty without any.",
        "window_start": "Its first local day.",
        "cause": "Kind of the largest movement: usage, true_up, adjustment, reversal, fee, limit.",
        "at": "When it was written.",
    },
    "quotas.threshold_notes": {
        "budget_id": "Whose window it is.",
        "group_key": "Which group of it; empty without any.",
        "window_start": "Its first local day.",
        "threshold": "The share of the limit that was reached.",
        "batch_id": "The batch that reached it; null where the limit was moved.",
        "at": "When it was written.",
    },
}
BEFORE: Final = {
    ("quotas.excess", "cause"): "Kind of the largest movement: usage, true_up, adjustment, reversal, limit.",
}


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    for table, columns in COMMENTS.items():
        schema, name = table.split(".")
        for column, comment in columns.items():
            op.alter_column(name, column, comment=comment, existing_comment=BEFORE.get((table, column)), schema=schema)


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    for table, columns in COMMENTS.items():
        schema, name = table.split(".")
        for column, comment in columns.items():
            op.alter_column(name, column, comment=BEFORE.get((table, column)), existing_comment=comment, schema=schema)
