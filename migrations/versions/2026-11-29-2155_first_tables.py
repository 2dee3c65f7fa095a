"""Make the first tables: parties, prices, feeds and batches, entries, dead letters; budgets and their windows.

Why: everything that first light stands on. What later work fills in (corrections, seals, backfills) adds to these.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.create_table(
        "acts",
        sa.Column("act_id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column(
            "at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("act", sa.Text(), nullable=False),
        sa.Column("detail", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("second_person", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("act_id", name=op.f("pk_acts")),
        schema="ledger",
        comment="Who changed what by command, and why.",
    )
    op.create_table(
        "dead_letters",
        sa.Column("dead_letter_id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False, comment="Feed or credential that brought it."),
        sa.Column("bytes_hash", postgresql.BYTEA(), nullable=False, comment="SHA-256 of the bytes."),
        sa.Column("bytes", postgresql.BYTEA(), nullable=True, comment="As received; null once expired."),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column(
            "event_key",
            sa.UUID(as_uuid=False),
            nullable=True,
            comment="Set where the identity could be read, so for each conflict.",
        ),
        sa.Column(
            "first_hash",
            sa.UUID(as_uuid=False),
            nullable=True,
            comment="Conflict: content hash of what was accepted first.",
        ),
        sa.Column("second_hash", sa.UUID(as_uuid=False), nullable=True, comment="Conflict: content hash of this one."),
        sa.Column("batch_id", sa.BigInteger(), nullable=False),
        sa.Column("first_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("last_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("repeats", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("resolved_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("dead_letter_id", name=op.f("pk_dead_letters")),
        sa.UniqueConstraint("origin", "bytes_hash", name=op.f("uq_dead_letters_origin_bytes_hash")),
        schema="ledger",
        comment="What was acknowledged and could not be posted, with its bytes and the reason.",
    )
    op.create_table(
        "entities",
        sa.Column("entity_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("entity_id", name=op.f("pk_entities")),
        schema="ledger",
        comment="One row per legal entity that issues invoices.",
    )
    op.create_table(
        "entries",
        sa.Column("entry_id", sa.BigInteger(), nullable=False),
        sa.Column("posting_period", sa.Date(), nullable=False, comment="The month that it is billed in."),
        sa.Column("batch_id", sa.BigInteger(), nullable=False),
        sa.Column("event_key", sa.UUID(as_uuid=False), nullable=False),
        sa.Column("request_key", sa.UUID(as_uuid=False), nullable=True),
        sa.Column("entry_no", sa.SmallInteger(), nullable=False, comment="Position among the rows of one statement."),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column(
            "corrects_entry_id",
            sa.BigInteger(),
            nullable=True,
            comment="The first entry of the request that it corrects.",
        ),
        sa.Column(
            "occurred_at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=False,
            comment="When the call ended, by the reporter's clock.",
        ),
        sa.Column(
            "recorded_at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=False,
            comment="When the row was written, by the database's clock.",
        ),
        sa.Column("local_date", sa.Date(), nullable=False, comment="Of occurred_at, in the tenant's zone."),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("sent_tenant_id", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("operation_id", sa.Text(), nullable=True),
        sa.Column("attempt_kind", sa.Text(), nullable=True),
        sa.Column("response_id", sa.Text(), nullable=True),
        sa.Column("provider", sa.Text(), nullable=True),
        sa.Column("provider_account", sa.Text(), nullable=True),
        sa.Column("deployment", sa.Text(), nullable=True),
        sa.Column("requested_model", sa.Text(), nullable=True),
        sa.Column("reported_model", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("requested_service_tier", sa.Text(), nullable=True),
        sa.Column("service_tier", sa.Text(), nullable=True),
        sa.Column("region", sa.Text(), nullable=True),
        sa.Column("node_id", sa.Text(), nullable=True),
        sa.Column("operation", sa.Text(), nullable=True),
        sa.Column("feature", sa.Text(), nullable=True),
        sa.Column("language", sa.Text(), nullable=False),
        sa.Column("sent_language", sa.Text(), nullable=True),
        sa.Column("route", sa.Text(), nullable=True),
        sa.Column("lane", sa.Text(), nullable=True),
        sa.Column("api_key_id", sa.Text(), nullable=True),
        sa.Column("conversation_id", sa.Text(), nullable=True),
        sa.Column("app_version", sa.Text(), nullable=True),
        sa.Column("trace_id", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("stop_reason", sa.Text(), nullable=True),
        sa.Column("cache_result", sa.Text(), nullable=True),
        sa.Column("basis", sa.Text(), nullable=False),
        sa.Column("reservation_id", sa.Text(), nullable=True),
        sa.Column("subject_id", sa.UUID(as_uuid=False), nullable=True),
        sa.Column("tags", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("attempt", sa.SmallInteger(), nullable=True),
        sa.Column("sequence", sa.BigInteger(), nullable=True, comment="The source's own counter, for gaps."),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("is_final", sa.Boolean(), nullable=False),
        sa.Column(
            "reservation_open", sa.Boolean(), nullable=False, comment="More attempts follow under the reservation."
        ),
        sa.Column(
            "request_count", sa.SmallInteger(), nullable=False, comment="1, 0 or -1: sums to the number of requests."
        ),
        sa.Column("uncached_input_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cache_read_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cache_write_5m_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cache_write_1h_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cache_write_other_tokens", sa.BigInteger(), nullable=True),
        sa.Column("visible_output_tokens", sa.BigInteger(), nullable=True),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=True),
        sa.Column(
            "input_tokens",
            sa.BigInteger(),
            nullable=True,
            comment="All input token meters, rare ones included; not a meter itself.",
        ),
        sa.Column(
            "output_tokens",
            sa.BigInteger(),
            nullable=True,
            comment="All output token meters, rare ones included; not a meter itself.",
        ),
        sa.Column(
            "avoided_tokens",
            sa.BigInteger(),
            nullable=True,
            comment="Counts of a gateway's own cache hit: not used, not billed.",
        ),
        sa.Column(
            "other_quantities",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="Rare meters: {meter: count}.",
        ),
        sa.Column(
            "reported",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="Evidence: its own counts. Otherwise what the counts said besides.",
        ),
        sa.Column(
            "cost_amount",
            sa.Numeric(),
            nullable=True,
            comment="What we owe the provider, unrounded; null while unpriced.",
        ),
        sa.Column("cost_currency", sa.CHAR(length=3), nullable=True),
        sa.Column("cost_rate_set_id", sa.BigInteger(), nullable=True),
        sa.Column(
            "charge_amount",
            sa.Numeric(),
            nullable=True,
            comment="What the tenant owes us, unrounded; null while unpriced.",
        ),
        sa.Column("charge_currency", sa.CHAR(length=3), nullable=True),
        sa.Column("charge_rate_set_id", sa.BigInteger(), nullable=True),
        sa.Column("usage_flags", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column(
            "unpriced_meters",
            postgresql.ARRAY(sa.Text()),
            nullable=False,
            comment="Why an amount is null: book:meter, or book:model.",
        ),
        sa.Column("max_output_tokens", sa.BigInteger(), nullable=True),
        sa.Column("delivered_output_tokens", sa.BigInteger(), nullable=True),
        sa.Column("provider_calls", sa.Integer(), nullable=True),
        sa.Column("latency_ms", sa.BigInteger(), nullable=True),
        sa.Column("ttft_ms", sa.BigInteger(), nullable=True),
        sa.Column("queue_ms", sa.BigInteger(), nullable=True),
        sa.Column("prefill_ms", sa.BigInteger(), nullable=True),
        sa.Column("decode_ms", sa.BigInteger(), nullable=True),
        sa.Column(
            "raw_digest",
            sa.UUID(as_uuid=False),
            nullable=True,
            comment="SHA-256, cut, of the raw usage object, which is kept apart and for a time.",
        ),
        sa.Column("reason", sa.Text(), nullable=True, comment="Of a correction."),
        sa.Column("actor", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "kind <> 'evidence' or (request_count = 0 and coalesce(charge_amount, 0) = 0 and coalesce(cost_amount, 0) = 0)",
            name=op.f("ck_entries_evidence_moves_nothing"),
        ),
        sa.CheckConstraint(
            "kind in ('usage', 'true_up', 'adjustment', 'reversal', 'evidence')", name=op.f("ck_entries_kind_is_known")
        ),
        sa.CheckConstraint(
            "(charge_amount is null) or (charge_currency is not null)", name=op.f("ck_entries_charge_has_a_currency")
        ),
        sa.CheckConstraint(
            "(cost_amount is null) or (cost_currency is not null)", name=op.f("ck_entries_cost_has_a_currency")
        ),
        sa.CheckConstraint("request_count between -1 and 1", name=op.f("ck_entries_request_count_folds")),
        sa.PrimaryKeyConstraint("posting_period", "entry_id", name=op.f("pk_entries")),
        schema="ledger",
        comment="One row per accepted report and priced part: the facts. Rows are added, never changed.",
        postgresql_partition_by="list (posting_period)",
    )
    op.create_index(
        "ix_entries_corrects_entry_id",
        "entries",
        ["corrects_entry_id"],
        unique=False,
        schema="ledger",
        postgresql_where=sa.text("corrects_entry_id is not null"),
    )
    op.create_index(
        "ix_entries_tenant_id_occurred_at", "entries", ["tenant_id", "occurred_at"], unique=False, schema="ledger"
    )
    op.create_table(
        "event_keys",
        sa.Column(
            "key",
            sa.UUID(as_uuid=False),
            nullable=False,
            comment="Identity of an event, a correction or a fee: unique for ever.",
        ),
        sa.Column("content_hash", sa.UUID(as_uuid=False), nullable=False),
        sa.Column("hash_version", sa.SmallInteger(), nullable=False),
        sa.Column("batch_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_event_keys")),
        schema="ledger",
        comment="Insert only.",
    )
    op.create_table(
        "feeds",
        sa.Column("feed_id", sa.Integer(), sa.Identity(always=False), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column(
            "name",
            sa.Text(),
            nullable=False,
            comment="kafka:cluster:topic id:partition, api:replica, load:id, commands.",
        ),
        sa.Column(
            "epoch",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="Raised by each claim; a writer with an older one is fenced.",
        ),
        sa.Column(
            "next_position",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="What is read next; moves in the transaction that posts.",
        ),
        sa.Column("last_number", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("last_hash", postgresql.BYTEA(), server_default=sa.text("'\\x'::bytea"), nullable=False),
        sa.Column(
            "starts_here",
            sa.BigInteger(),
            nullable=True,
            comment="A person's word that nothing before this position is wanted.",
        ),
        sa.Column(
            "posted_until",
            postgresql.TIMESTAMP(timezone=True),
            nullable=True,
            comment="Append time up to which the feed is posted.",
        ),
        sa.Column(
            "start_position",
            sa.BigInteger(),
            nullable=True,
            comment="Where the worker last started, and how often without progress.",
        ),
        sa.Column("start_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "suspect_position", sa.BigInteger(), nullable=True, comment="The message in hand when going one at a time."
        ),
        sa.Column("suspect_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.CheckConstraint("kind in ('kafka', 'api', 'file', 'load', 'commands')", name=op.f("ck_feeds_kind_is_known")),
        sa.PrimaryKeyConstraint("feed_id", name=op.f("pk_feeds")),
        sa.UniqueConstraint("name", name=op.f("uq_feeds_name")),
        schema="ledger",
        comment="Where batches come from.",
    )
    op.create_table(
        "models",
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False, comment="The canonical id."),
        sa.Column(
            "input_tokens_max",
            sa.BigInteger(),
            nullable=True,
            comment="A report above it is impossible; null where unknown.",
        ),
        sa.Column("output_tokens_max", sa.BigInteger(), nullable=True),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("provider", "model", name=op.f("pk_models")),
        schema="ledger",
        comment="One row per provider and model that we know.",
    )
    op.create_table(
        "node_windows",
        sa.Column("event_key", sa.UUID(as_uuid=False), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("starts_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("ends_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("body", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("batch_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("event_key", name=op.f("pk_node_windows")),
        schema="ledger",
        comment="One row per report of a GPU node about itself over a span of time.",
    )
    op.create_table(
        "provider_accounts",
        sa.Column("provider_account", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("currency", sa.CHAR(length=3), nullable=False),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("provider_account", name=op.f("pk_provider_accounts")),
        schema="ledger",
        comment="One row per account that a provider bills.",
    )
    op.create_table(
        "rate_sets",
        sa.Column("rate_set_id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("content_hash", sa.UUID(as_uuid=False), nullable=False),
        sa.Column("book", sa.Text(), nullable=False),
        sa.Column("currency", sa.CHAR(length=3), nullable=False),
        sa.Column(
            "card_hash", sa.UUID(as_uuid=False), nullable=False, comment="content_hash of the card that it resolves."
        ),
        sa.Column(
            "selectors",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="What chose it: tier, batch, band, hours, markup.",
        ),
        sa.Column("is_free", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column(
            "recorded_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.CheckConstraint("book in ('cost', 'charge')", name=op.f("ck_rate_sets_book_is_known")),
        sa.PrimaryKeyConstraint("rate_set_id", name=op.f("pk_rate_sets")),
        sa.UniqueConstraint("content_hash", name=op.f("uq_rate_sets_content_hash")),
        schema="ledger",
        comment="Immutable: what a card resolves to for given selectors. Every priced entry names one per book.",
    )
    op.create_table(
        "raw_usage",
        sa.Column("received_month", sa.Date(), nullable=False),
        sa.Column("entry_id", sa.BigInteger(), nullable=False),
        sa.Column("flavour", sa.Text(), nullable=False),
        sa.Column("parser_version", sa.SmallInteger(), nullable=False),
        sa.Column(
            "usage",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="The provider's object, cut to numeric and enum keys.",
        ),
        sa.PrimaryKeyConstraint("received_month", "entry_id", name=op.f("pk_raw_usage")),
        schema="ledger",
        comment="What the counts were read from, so that a wrong mapping can be replayed; partitioned by month of receipt.",
        postgresql_partition_by="list (received_month)",
    )
    op.create_table(
        "requests",
        sa.Column("key", sa.UUID(as_uuid=False), nullable=False),
        sa.Column("rank", postgresql.ARRAY(sa.Integer()), nullable=False, comment="Rank of the best statement so far."),
        sa.Column(
            "posting_period",
            sa.Date(),
            nullable=False,
            comment="Where its first rows are: entry_id and the entry_count - 1 after it.",
        ),
        sa.Column("entry_id", sa.BigInteger(), nullable=False),
        sa.Column("entry_count", sa.Integer(), nullable=False),
        sa.Column(
            "occurred_at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=False,
            comment="Of the first entry: it dates the price and the windows.",
        ),
        sa.Column("best_event_key", sa.UUID(as_uuid=False), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_requests")),
        schema="ledger",
        comment="A projection that the writer updates and `tallystick verify` rebuilds.",
        postgresql_with={"fillfactor": "85"},
    )
    op.create_table(
        "routines",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_routines")),
        schema="ledger",
        comment="Which text of each sql/ file was last applied, so that a migration touches only what changed.",
    )
    op.create_table(
        "sources",
        sa.Column("source", sa.Text(), nullable=False, comment="The CloudEvents source, exactly as sent."),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column(
            "rank", sa.Integer(), nullable=False, comment="Between two reports of a request the higher rank counts."
        ),
        sa.Column("speaks_for_all", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("ended_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint("kind in ('gateway', 'node', 'load', 'commands')", name=op.f("ck_sources_kind_is_known")),
        sa.PrimaryKeyConstraint("source", name=op.f("pk_sources")),
        schema="ledger",
        comment="One row per registered sender.",
    )
    op.create_table(
        "subjects",
        sa.Column("subject_id", sa.UUID(as_uuid=False), server_default=sa.text("gen_random_uuid()"), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column(
            "user_hash",
            sa.Text(),
            nullable=True,
            comment="The sender's hash; erasure sets it to null, and entries keep a bare id.",
        ),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("subject_id", name=op.f("pk_subjects")),
        sa.UniqueConstraint("tenant_id", "user_hash", name=op.f("uq_subjects_tenant_id_user_hash")),
        schema="ledger",
        comment="Mutable and outside the chain: links the subject of an entry to the sender's hash of its user.",
    )
    op.create_table(
        "tenants",
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="Opaque; names and addresses stay with the caller."),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column(
            "starts_at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=False,
            comment="Periods begin with the month of this instant.",
        ),
        sa.Column(
            "ends_at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=True,
            comment="Exclusive; null while the tenant stays. Periods go on for late usage.",
        ),
        sa.Column("merged_into", sa.Text(), nullable=True),
        sa.Column(
            "merged_at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=True,
            comment="Usage that occurred from here on belongs to merged_into.",
        ),
        sa.CheckConstraint("(merged_into is null) = (merged_at is null)", name=op.f("ck_tenants_merge_has_its_time")),
        sa.CheckConstraint("merged_into <> tenant_id", name=op.f("ck_tenants_is_not_merged_into_itself")),
        sa.ForeignKeyConstraint(["merged_into"], ["ledger.tenants.tenant_id"], name=op.f("fk_tenants_merged_into")),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_tenants")),
        schema="ledger",
        comment="One row per tenant.",
    )
    op.create_table(
        "versions",
        sa.Column("is_only", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("calendar", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("parties", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("prices", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("budgets", sa.BigInteger(), server_default="1", nullable=False),
        sa.CheckConstraint("is_only", name=op.f("ck_versions_is_one_row")),
        sa.PrimaryKeyConstraint("is_only", name=op.f("pk_versions")),
        schema="ledger",
        comment="One row: raised under the exclusive calendar lock by whoever changes periods, parties, prices or budgets.",
    )
    op.create_table(
        "api_keys",
        sa.Column("key_id", sa.Text(), nullable=False, comment="The public part, such as tsk_1a2b3c4d."),
        sa.Column(
            "secret_hash",
            postgresql.BYTEA(),
            nullable=False,
            comment="SHA-256 of the secret part, which is 32 random bytes.",
        ),
        sa.Column("tenant_id", sa.Text(), nullable=True),
        sa.Column("source", sa.Text(), nullable=True),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("revoked_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.CheckConstraint("num_nonnulls(tenant_id, source) = 1", name=op.f("ck_api_keys_belongs_to_one")),
        sa.ForeignKeyConstraint(["source"], ["ledger.sources.source"], name=op.f("fk_api_keys_source")),
        sa.ForeignKeyConstraint(["tenant_id"], ["ledger.tenants.tenant_id"], name=op.f("fk_api_keys_tenant_id")),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_api_keys")),
        schema="ledger",
        comment="A credential belongs to one tenant, or to one source.",
    )
    op.create_table(
        "batches",
        sa.Column(
            "batch_id",
            sa.BigInteger(),
            sa.Identity(always=False),
            nullable=False,
            comment="entry_id = batch_id x 65,536 + ordinal.",
        ),
        sa.Column("feed_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False, comment="Gapless and in commit order inside the feed."),
        sa.Column("first_position", sa.BigInteger(), nullable=True),
        sa.Column("next_position", sa.BigInteger(), nullable=True, comment="Exclusive end of what the batch read."),
        sa.Column("created_count", sa.Integer(), nullable=False),
        sa.Column("duplicate_count", sa.Integer(), nullable=False),
        sa.Column("evidence_count", sa.Integer(), nullable=False),
        sa.Column("conflict_count", sa.Integer(), nullable=False),
        sa.Column("dead_letter_count", sa.Integer(), nullable=False),
        sa.Column("entry_count", sa.Integer(), nullable=False),
        sa.Column("recorded_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("previous_hash", postgresql.BYTEA(), nullable=False),
        sa.Column("hash", postgresql.BYTEA(), nullable=False),
        sa.Column("hash_version", sa.SmallInteger(), nullable=False),
        sa.ForeignKeyConstraint(["feed_id"], ["ledger.feeds.feed_id"], name=op.f("fk_batches_feed_id")),
        sa.PrimaryKeyConstraint("batch_id", name=op.f("pk_batches")),
        sa.UniqueConstraint("feed_id", "number", name=op.f("uq_batches_feed_id_number")),
        schema="ledger",
        comment="One row per committed post.",
    )
    op.create_table(
        "cards",
        sa.Column("card_id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("book", sa.Text(), nullable=False),
        sa.Column("content_hash", sa.UUID(as_uuid=False), nullable=False, comment="So that an import can be repeated."),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("provider_account", sa.Text(), nullable=True),
        sa.Column("deployment", sa.Text(), nullable=True),
        sa.Column(
            "model",
            sa.Text(),
            nullable=True,
            comment="Canonical id; null only in the charge book, for a markup over cost.",
        ),
        sa.Column("tenant_id", sa.Text(), nullable=True, comment="Charge book: null is the plan."),
        sa.Column("currency", sa.CHAR(length=3), nullable=False),
        sa.Column(
            "effective_at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=False,
            comment="In force from here until the next card.",
        ),
        sa.Column(
            "recorded_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="Known since.",
        ),
        sa.Column(
            "is_withdrawal",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
            comment="Ends the one before.",
        ),
        sa.Column(
            "body",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="Rates, bands, variants, hours and rules, as ledger.price_book reads them.",
        ),
        sa.Column("source_address", sa.Text(), nullable=False),
        sa.Column(
            "checked_on",
            sa.Date(),
            nullable=False,
            comment="When a person or an import last held it against its source.",
        ),
        sa.CheckConstraint("book in ('cost', 'charge')", name=op.f("ck_cards_book_is_known")),
        sa.ForeignKeyConstraint(["tenant_id"], ["ledger.tenants.tenant_id"], name=op.f("fk_cards_tenant_id")),
        sa.PrimaryKeyConstraint("card_id", name=op.f("pk_cards")),
        sa.UniqueConstraint("content_hash", name=op.f("uq_cards_content_hash")),
        schema="ledger",
        comment="Immutable: a changed price is a new card.",
    )
    op.create_index(
        "ix_cards_lookup", "cards", ["book", "provider", "model", "effective_at"], unique=False, schema="ledger"
    )
    op.create_table(
        "model_aliases",
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("alias", sa.Text(), nullable=False, comment="Matched whole; nothing matches loosely."),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["provider", "model"],
            ["ledger.models.provider", "ledger.models.model"],
            name=op.f("fk_model_aliases_provider_model"),
        ),
        sa.PrimaryKeyConstraint("provider", "alias", name=op.f("pk_model_aliases")),
        schema="ledger",
        comment="Other exact names of a model.",
    )
    op.create_table(
        "periods",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("posting_period", sa.Date(), nullable=False, comment="The first day of the month."),
        sa.Column("starts_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column(
            "ends_at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=False,
            comment="Exclusive: the local midnight that starts the next month.",
        ),
        sa.Column(
            "grace_until",
            postgresql.TIMESTAMP(timezone=True),
            nullable=False,
            comment="Late usage enters until here, then the next period.",
        ),
        sa.Column("state", sa.Text(), server_default="open", nullable=False),
        sa.CheckConstraint(
            "grace_until >= ends_at or state = 'closed'", name=op.f("ck_periods_grace_is_after_the_end")
        ),
        sa.CheckConstraint("state in ('open', 'closed')", name=op.f("ck_periods_state_is_known")),
        sa.CheckConstraint("extract(day from posting_period) = 1", name=op.f("ck_periods_is_a_month")),
        sa.CheckConstraint("starts_at < ends_at", name=op.f("ck_periods_has_a_length")),
        sa.ForeignKeyConstraint(["tenant_id"], ["ledger.tenants.tenant_id"], name=op.f("fk_periods_tenant_id")),
        sa.PrimaryKeyConstraint("tenant_id", "posting_period", name=op.f("pk_periods")),
        schema="ledger",
        comment="One row per tenant and month, half-open in the tenant's zone.",
    )
    op.create_table(
        "rates",
        sa.Column("rate_set_id", sa.BigInteger(), nullable=False),
        sa.Column("meter", sa.Text(), nullable=False),
        sa.Column(
            "price", sa.Numeric(), nullable=False, comment="In the set's currency, for `per` units; never rounded."
        ),
        sa.Column("per", sa.BigInteger(), nullable=False, comment="A power of ten, so that amounts are exact."),
        sa.Column(
            "priced_as",
            sa.Text(),
            nullable=True,
            comment="The meter whose rate this is, where the card had none for this one.",
        ),
        sa.CheckConstraint(
            "per in (1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000)",
            name=op.f("ck_rates_per_is_a_power_of_ten"),
        ),
        sa.CheckConstraint("price >= 0", name=op.f("ck_rates_price_is_not_negative")),
        sa.ForeignKeyConstraint(["rate_set_id"], ["ledger.rate_sets.rate_set_id"], name=op.f("fk_rates_rate_set_id")),
        sa.PrimaryKeyConstraint("rate_set_id", "meter", name=op.f("pk_rates")),
        schema="ledger",
        comment="One row per rate set and meter.",
    )
    op.create_table(
        "reader_tenants",
        sa.Column("login", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["ledger.tenants.tenant_id"], name=op.f("fk_reader_tenants_tenant_id")),
        sa.PrimaryKeyConstraint("login", "tenant_id", name=op.f("pk_reader_tenants")),
        schema="ledger",
        comment="The tenants that a login of the group tallystick_reader may see.",
    )
    op.create_table(
        "source_tenants",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["source"], ["ledger.sources.source"], name=op.f("fk_source_tenants_source")),
        sa.ForeignKeyConstraint(["tenant_id"], ["ledger.tenants.tenant_id"], name=op.f("fk_source_tenants_tenant_id")),
        sa.PrimaryKeyConstraint("source", "tenant_id", name=op.f("pk_source_tenants")),
        schema="ledger",
        comment="The tenants that a source may speak for, where it does not speak for all.",
    )
    op.create_table(
        "tenant_versions",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column(
            "effective_at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=False,
            comment="A period start of the tenant, or its start; of a status, any time.",
        ),
        sa.Column("entity_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("time_zone", sa.Text(), nullable=False),
        sa.Column("charge_currency", sa.CHAR(length=3), nullable=False),
        sa.Column("status", sa.Text(), server_default="active", nullable=False),
        sa.Column(
            "recorded_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "status in ('active', 'suspended', 'left')", name=op.f("ck_tenant_versions_status_is_known")
        ),
        sa.ForeignKeyConstraint(
            ["entity_id"], ["ledger.entities.entity_id"], name=op.f("fk_tenant_versions_entity_id")
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["ledger.tenants.tenant_id"], name=op.f("fk_tenant_versions_tenant_id")),
        sa.PrimaryKeyConstraint("tenant_id", "effective_at", name=op.f("pk_tenant_versions")),
        schema="ledger",
        comment="One row per tenant and change: in force from effective_at until the next.",
    )
    op.create_table(
        "batch_digests",
        sa.Column("batch_id", sa.BigInteger(), nullable=False),
        sa.Column("posting_period", sa.Date(), nullable=False),
        sa.Column("row_count", sa.Integer(), nullable=False),
        sa.Column(
            "cost_sums",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="Amount by currency, decimal text.",
        ),
        sa.Column("charge_sums", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "digest", postgresql.BYTEA(), nullable=False, comment="SHA-256 of the rows' COPY lines in entry_id order."
        ),
        sa.ForeignKeyConstraint(["batch_id"], ["ledger.batches.batch_id"], name=op.f("fk_batch_digests_batch_id")),
        sa.PrimaryKeyConstraint("batch_id", "posting_period", name=op.f("pk_batch_digests")),
        schema="ledger",
        comment="One row per batch and posting period that it wrote to; outlives the rows.",
    )
    op.create_table(
        "budgets",
        sa.Column("budget_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=True, comment="Null: every tenant."),
        sa.Column(
            "provider_account", sa.Text(), nullable=True, comment="Null: any. Likewise for the columns down to tags."
        ),
        sa.Column("feature", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("route", sa.Text(), nullable=True),
        sa.Column("lane", sa.Text(), nullable=True),
        sa.Column("api_key_id", sa.Text(), nullable=True),
        sa.Column("subject_id", sa.UUID(as_uuid=False), nullable=True),
        sa.Column(
            "tags", postgresql.JSONB(astext_type=sa.Text()), nullable=True, comment="Entries whose tags contain these."
        ),
        sa.Column(
            "group_by",
            postgresql.ARRAY(sa.Text()),
            server_default="{}",
            nullable=False,
            comment="One window for each combination.",
        ),
        sa.Column("unit", sa.Text(), nullable=False, comment="A book, or tokens, or requests."),
        sa.Column(
            "currency",
            sa.CHAR(length=3),
            nullable=True,
            comment="Of a book; null where windows are grouped by currency.",
        ),
        sa.Column("window_kind", sa.Text(), nullable=False),
        sa.Column("window_days", sa.Integer(), nullable=True, comment="Length, for the kind days."),
        sa.Column(
            "anchor",
            sa.Date(),
            nullable=True,
            comment="First day of a window of days; day of the month of an anchored one.",
        ),
        sa.Column(
            "first_window", sa.Date(), nullable=False, comment="Movements into earlier windows are not followed."
        ),
        sa.Column("limit_amount", sa.Numeric(), nullable=True, comment="Zero forbids everything; null does not limit."),
        sa.Column("hardness", sa.Text(), server_default="hard", nullable=False),
        sa.Column(
            "interactive_reserve", sa.Numeric(), server_default="0", nullable=False, comment="Not for the batch lane."
        ),
        sa.Column(
            "thresholds",
            postgresql.ARRAY(sa.Numeric()),
            server_default="{}",
            nullable=False,
            comment="Shares of the limit.",
        ),
        sa.Column("unknown_price", sa.Text(), server_default="refuse", nullable=False),
        sa.Column("missing_estimate", sa.Text(), server_default="refuse", nullable=False),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column(
            "ended_at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=True,
            comment="From here on it neither limits nor follows.",
        ),
        sa.CheckConstraint(
            "(unit in ('charge', 'cost')) = (currency is not null or 'currency' = any (group_by))",
            name=op.f("ck_budgets_money_has_a_currency"),
        ),
        sa.CheckConstraint(
            "(window_kind = 'days') = (window_days is not null)", name=op.f("ck_budgets_days_have_a_length")
        ),
        sa.CheckConstraint(
            "(window_kind in ('days', 'anchored_month')) = (anchor is not null)",
            name=op.f("ck_budgets_anchor_where_needed"),
        ),
        sa.CheckConstraint(
            "group_by <@ array['tenant_id', 'provider_account', 'feature', 'model', 'route', 'lane', 'api_key_id', 'subject_id', 'currency']::text[]",
            name=op.f("ck_budgets_group_by_is_known"),
        ),
        sa.CheckConstraint("hardness in ('hard', 'soft', 'shadow')", name=op.f("ck_budgets_hardness_is_known")),
        sa.CheckConstraint(
            "limit_amount is null or unit not in ('charge', 'cost') or currency is not null",
            name=op.f("ck_budgets_limit_has_a_currency"),
        ),
        sa.CheckConstraint(
            "missing_estimate in ('refuse', 'admit')", name=op.f("ck_budgets_missing_estimate_is_known")
        ),
        sa.CheckConstraint(
            "unit in ('charge', 'cost', 'total_tokens', 'input_tokens', 'output_tokens', 'input_tokens_without_cache_reads', 'requests')",
            name=op.f("ck_budgets_unit_is_known"),
        ),
        sa.CheckConstraint("unknown_price in ('refuse', 'admit')", name=op.f("ck_budgets_unknown_price_is_known")),
        sa.CheckConstraint(
            "window_kind in ('day', 'days', 'week', 'month', 'anchored_month', 'lifetime')",
            name=op.f("ck_budgets_window_kind_is_known"),
        ),
        sa.CheckConstraint("limit_amount >= 0", name=op.f("ck_budgets_limit_is_not_negative")),
        sa.CheckConstraint("window_days > 0", name=op.f("ck_budgets_length_is_positive")),
        sa.PrimaryKeyConstraint("budget_id", name=op.f("pk_budgets")),
        schema="quotas",
        comment="One row per budget. Scope, unit and window never change: a change of those is a new budget.",
    )
    op.create_table(
        "excess",
        sa.Column("excess_id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("budget_id", sa.Text(), nullable=False),
        sa.Column("group_key", sa.Text(), nullable=False),
        sa.Column("window_start", sa.Date(), nullable=False),
        sa.Column("batch_id", sa.BigInteger(), nullable=True, comment="Null where the limit was moved."),
        sa.Column(
            "change",
            sa.Numeric(),
            nullable=False,
            comment="Of posted + held above the limit; the changes of a window sum to its excess.",
        ),
        sa.Column(
            "cause",
            sa.Text(),
            nullable=False,
            comment="Kind of the largest movement: usage, true_up, adjustment, reversal, limit.",
        ),
        sa.Column(
            "at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("excess_id", name=op.f("pk_excess")),
        schema="quotas",
        comment="One row per commit that changed how far a window is above its hard limit.",
    )
    op.create_index(
        "ix_excess_window", "excess", ["budget_id", "group_key", "window_start"], unique=False, schema="quotas"
    )
    op.create_table(
        "threshold_notes",
        sa.Column("budget_id", sa.Text(), nullable=False),
        sa.Column("group_key", sa.Text(), nullable=False),
        sa.Column("window_start", sa.Date(), nullable=False),
        sa.Column("threshold", sa.Numeric(), nullable=False),
        sa.Column("batch_id", sa.BigInteger(), nullable=True),
        sa.Column(
            "at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("budget_id", "group_key", "window_start", "threshold", name=op.f("pk_threshold_notes")),
        schema="quotas",
        comment="One row per window and threshold, written when it is first reached.",
    )
    op.create_table(
        "windows",
        sa.Column("budget_id", sa.Text(), nullable=False),
        sa.Column(
            "group_key", sa.Text(), nullable=False, comment="JSON array of the group_by values; empty without any."
        ),
        sa.Column("window_start", sa.Date(), nullable=False, comment="First local day, in the tenant's zone."),
        sa.Column("tenant_id", sa.Text(), nullable=True, comment="Where the scope or the group names one."),
        sa.Column("currency", sa.CHAR(length=3), nullable=True),
        sa.Column(
            "posted",
            sa.Numeric(),
            server_default="0",
            nullable=False,
            comment="Moved by the insert into ledger.entries itself.",
        ),
        sa.Column(
            "held",
            sa.Numeric(),
            server_default="0",
            nullable=False,
            comment="Promised by reservations and not yet used.",
        ),
        sa.Column(
            "unpriced_count",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="Requests in scope without an amount or count.",
        ),
        sa.Column("last_batch_id", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["budget_id"], ["quotas.budgets.budget_id"], name=op.f("fk_windows_budget_id")),
        sa.PrimaryKeyConstraint("budget_id", "group_key", "window_start", name=op.f("pk_windows")),
        schema="quotas",
        comment="One row per budget, group and window.",
        postgresql_with={"fillfactor": "50"},
    )
    op.create_index(
        "ix_windows_tenant_id_window_start", "windows", ["tenant_id", "window_start"], unique=False, schema="quotas"
    )
    op.execute("insert into ledger.versions default values")
    # Totals per tenant, book and month: no limit, never ended. The standing proof holds them against ledger and marts.
    op.execute(
        "insert into quotas.budgets (budget_id, group_by, unit, window_kind, first_window) values"
        " ('totals-charge', '{tenant_id,currency}', 'charge', 'month', '0001-01-01'),"
        " ('totals-cost', '{tenant_id,currency}', 'cost', 'month', '0001-01-01')"
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    # What the routines hang on the tables, where it would hold one of them back.
    op.execute("drop view if exists quotas.own_windows, ledger.entry_lines, ledger.own_entry_lines, ledger.own_entries")
    op.execute("drop view if exists ledger.own_tenants")
    op.execute("drop policy if exists own_tenants on ledger.entries")
    op.drop_index("ix_windows_tenant_id_window_start", table_name="windows", schema="quotas")
    op.drop_table("windows", schema="quotas")
    op.drop_table("threshold_notes", schema="quotas")
    op.drop_index("ix_excess_window", table_name="excess", schema="quotas")
    op.drop_table("excess", schema="quotas")
    op.drop_table("budgets", schema="quotas")
    op.drop_table("batch_digests", schema="ledger")
    op.drop_table("tenant_versions", schema="ledger")
    op.drop_table("source_tenants", schema="ledger")
    op.drop_table("reader_tenants", schema="ledger")
    op.drop_table("rates", schema="ledger")
    op.drop_table("periods", schema="ledger")
    op.drop_table("model_aliases", schema="ledger")
    op.drop_index("ix_cards_lookup", table_name="cards", schema="ledger")
    op.drop_table("cards", schema="ledger")
    op.drop_table("batches", schema="ledger")
    op.drop_table("api_keys", schema="ledger")
    op.drop_table("versions", schema="ledger")
    op.drop_table("tenants", schema="ledger")
    op.drop_table("subjects", schema="ledger")
    op.drop_table("sources", schema="ledger")
    op.drop_table("routines", schema="ledger")
    op.drop_table("requests", schema="ledger")
    op.drop_table("raw_usage", schema="ledger")
    op.drop_table("rate_sets", schema="ledger")
    op.drop_table("provider_accounts", schema="ledger")
    op.drop_table("node_windows", schema="ledger")
    op.drop_table("models", schema="ledger")
    op.drop_table("feeds", schema="ledger")
    op.drop_table("event_keys", schema="ledger")
    op.drop_index("ix_entries_tenant_id_occurred_at", table_name="entries", schema="ledger")
    op.drop_index(
        "ix_entries_corrects_entry_id",
        table_name="entries",
        schema="ledger",
        postgresql_where=sa.text("corrects_entry_id is not null"),
    )
    op.drop_table("entries", schema="ledger")
    op.drop_table("entities", schema="ledger")
    op.drop_table("dead_letters", schema="ledger")
    op.drop_table("acts", schema="ledger")
