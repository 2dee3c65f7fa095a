"""The tables of the schema `ledger`. What they promise stands in README.md; functions and triggers in sql/."""

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA, JSONB, TIMESTAMP, UUID

from ledger.meters import COLUMN_METERS
from ledger.statements import DIMENSIONS

NAMING: Final = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}

metadata = sa.MetaData(schema="ledger", naming_convention=NAMING)

Instant = TIMESTAMP(timezone=True)
Id = UUID(as_uuid=False)
Amount = sa.Numeric()


def now() -> sa.TextClause:
    return sa.text("clock_timestamp()")


def one_of(column: str, *values: str) -> sa.CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return sa.CheckConstraint(f"{column} in ({listed})", name=f"{column}_is_known")


versions = sa.Table(
    "versions",
    metadata,
    sa.Column("is_only", sa.Boolean, primary_key=True, server_default=sa.true()),
    sa.Column("calendar", sa.BigInteger, nullable=False, server_default="1"),
    sa.Column("parties", sa.BigInteger, nullable=False, server_default="1"),
    sa.Column("prices", sa.BigInteger, nullable=False, server_default="1"),
    sa.Column("budgets", sa.BigInteger, nullable=False, server_default="1"),
    sa.CheckConstraint("is_only", name="is_one_row"),
    comment="One row: raised under the exclusive calendar lock by whoever changes periods, parties, prices or budgets.",
)

# --- Parties ---------------------------------------------------------------------------------------------------------

entities = sa.Table(
    "entities",
    metadata,
    sa.Column("entity_id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("created_at", Instant, nullable=False, server_default=now()),
    comment="One row per legal entity that issues invoices.",
)

tenants = sa.Table(
    "tenants",
    metadata,
    sa.Column("tenant_id", sa.Text, primary_key=True, comment="Opaque; names and addresses stay with the caller."),
    sa.Column("created_at", Instant, nullable=False, server_default=now()),
    sa.Column("starts_at", Instant, nullable=False, comment="Periods begin with the month of this instant."),
    sa.Column("ends_at", Instant, comment="Exclusive; null while the tenant stays. Periods go on for late usage."),
    sa.Column("merged_into", sa.Text, sa.ForeignKey("ledger.tenants.tenant_id")),
    sa.Column("merged_at", Instant, comment="Usage that occurred from here on belongs to merged_into."),
    sa.CheckConstraint("(merged_into is null) = (merged_at is null)", name="merge_has_its_time"),
    sa.CheckConstraint("merged_into <> tenant_id", name="is_not_merged_into_itself"),
    comment="One row per tenant.",
)

tenant_versions = sa.Table(
    "tenant_versions",
    metadata,
    sa.Column("tenant_id", sa.Text, sa.ForeignKey("ledger.tenants.tenant_id"), primary_key=True),
    sa.Column(
        "effective_at",
        Instant,
        primary_key=True,
        comment="A period start of the tenant, or its start; of a status, any time.",
    ),
    sa.Column("entity_id", sa.Text, sa.ForeignKey("ledger.entities.entity_id"), nullable=False),
    sa.Column("name", sa.Text),
    sa.Column("time_zone", sa.Text, nullable=False),
    sa.Column("charge_currency", sa.CHAR(3), nullable=False),
    sa.Column("status", sa.Text, nullable=False, server_default="active"),
    sa.Column("recorded_at", Instant, nullable=False, server_default=now()),
    one_of("status", "active", "suspended", "left"),
    comment="One row per tenant and change: in force from effective_at until the next.",
)

sources = sa.Table(
    "sources",
    metadata,
    sa.Column("source", sa.Text, primary_key=True, comment="The CloudEvents source, exactly as sent."),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("rank", sa.Integer, nullable=False, comment="Between two reports of a request the higher rank counts."),
    sa.Column("speaks_for_all", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("created_at", Instant, nullable=False, server_default=now()),
    sa.Column("ended_at", Instant),
    one_of("kind", "gateway", "node", "load", "commands"),
    comment="One row per registered sender.",
)

source_tenants = sa.Table(
    "source_tenants",
    metadata,
    sa.Column("source", sa.Text, sa.ForeignKey("ledger.sources.source"), primary_key=True),
    sa.Column("tenant_id", sa.Text, sa.ForeignKey("ledger.tenants.tenant_id"), primary_key=True),
    comment="The tenants that a source may speak for, where it does not speak for all.",
)

provider_accounts = sa.Table(
    "provider_accounts",
    metadata,
    sa.Column("provider_account", sa.Text, primary_key=True),
    sa.Column("provider", sa.Text, nullable=False),
    sa.Column("currency", sa.CHAR(3), nullable=False),
    sa.Column("created_at", Instant, nullable=False, server_default=now()),
    sa.Column(
        "tenant_id",
        sa.Text,
        sa.ForeignKey("ledger.tenants.tenant_id"),
        comment="The tenant whose own account it is, and who is billed for it; null: ours.",
    ),
    comment="One row per account that a provider bills.",
)

models = sa.Table(
    "models",
    metadata,
    sa.Column("provider", sa.Text, primary_key=True),
    sa.Column("model", sa.Text, primary_key=True, comment="The canonical id."),
    sa.Column("input_tokens_max", sa.BigInteger, comment="A report above it is impossible; null where unknown."),
    sa.Column("output_tokens_max", sa.BigInteger),
    sa.Column("created_at", Instant, nullable=False, server_default=now()),
    comment="One row per provider and model that we know.",
)

model_aliases = sa.Table(
    "model_aliases",
    metadata,
    sa.Column("provider", sa.Text, primary_key=True),
    sa.Column("alias", sa.Text, primary_key=True, comment="Matched whole; nothing matches loosely."),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.ForeignKeyConstraint(["provider", "model"], ["ledger.models.provider", "ledger.models.model"]),
    comment="Other exact names of a model.",
)

model_name_rules = sa.Table(
    "model_name_rules",
    metadata,
    sa.Column("provider", sa.Text, primary_key=True, comment="Whose names the rule is for."),
    sa.Column("place", sa.SmallInteger, primary_key=True, comment="Precedence: the lower one is tried first."),
    sa.Column(
        "kind",
        sa.Text,
        nullable=False,
        comment="prefix: `text` may be left out; version_suffix: -v1 or -v1:0 may be; fold_case: capitals do not count.",
    ),
    sa.Column("text", sa.Text, nullable=False, server_default="", comment="The whole prefix; empty for other kinds."),
    sa.Column("recorded_at", Instant, nullable=False, server_default=now(), comment="When the rule was set."),
    one_of("kind", "prefix", "version_suffix", "fold_case"),
    sa.CheckConstraint("(kind = 'prefix') = (text <> '')", name="prefix_has_its_text"),
    sa.CheckConstraint("place > 0", name="place_is_positive"),
    sa.UniqueConstraint("provider", "kind", "text"),
    comment="What may stand around the exact name of a model; a name that no rule leads to a known one is unpriced.",
)

subjects = sa.Table(
    "subjects",
    metadata,
    sa.Column("subject_id", Id, primary_key=True, server_default=sa.text("gen_random_uuid()")),
    sa.Column("tenant_id", sa.Text, nullable=False),
    sa.Column("user_hash", sa.Text, comment="The sender's hash; erasure sets it to null, and entries keep a bare id."),
    sa.Column("created_at", Instant, nullable=False, server_default=now()),
    # Serves the look-up of a sender's hash while a batch is prepared.
    sa.UniqueConstraint("tenant_id", "user_hash"),
    comment="Mutable and outside the chain: links the subject of an entry to the sender's hash of its user.",
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("key_id", sa.Text, primary_key=True, comment="The public part, such as tsk_1a2b3c4d."),
    sa.Column("secret_hash", BYTEA, nullable=False, comment="SHA-256 of the secret part, which is 32 random bytes."),
    sa.Column("tenant_id", sa.Text, sa.ForeignKey("ledger.tenants.tenant_id")),
    sa.Column("source", sa.Text, sa.ForeignKey("ledger.sources.source")),
    sa.Column("created_at", Instant, nullable=False, server_default=now()),
    sa.Column("revoked_at", Instant),
    sa.Column("note", sa.Text),
    sa.CheckConstraint("num_nonnulls(tenant_id, source) = 1", name="belongs_to_one"),
    comment="A credential belongs to one tenant, or to one source.",
)

periods = sa.Table(
    "periods",
    metadata,
    sa.Column("tenant_id", sa.Text, sa.ForeignKey("ledger.tenants.tenant_id"), primary_key=True),
    sa.Column("posting_period", sa.Date, primary_key=True, comment="The first day of the month."),
    sa.Column("starts_at", Instant, nullable=False),
    sa.Column("ends_at", Instant, nullable=False, comment="Exclusive: the local midnight that starts the next month."),
    sa.Column("grace_until", Instant, nullable=False, comment="Late usage enters until here, then the next period."),
    sa.Column("state", sa.Text, nullable=False, server_default="open"),
    one_of("state", "open", "closed"),
    sa.CheckConstraint("extract(day from posting_period) = 1", name="is_a_month"),
    sa.CheckConstraint("starts_at < ends_at", name="has_a_length"),
    sa.CheckConstraint("grace_until >= ends_at or state = 'closed'", name="grace_is_after_the_end"),
    comment="One row per tenant and month, half-open in the tenant's zone.",
)

# --- Prices ----------------------------------------------------------------------------------------------------------

cards = sa.Table(
    "cards",
    metadata,
    sa.Column("card_id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("book", sa.Text, nullable=False),
    sa.Column("content_hash", Id, nullable=False, unique=True, comment="So that an import can be repeated."),
    sa.Column("provider", sa.Text, nullable=False),
    sa.Column("provider_account", sa.Text),
    sa.Column("deployment", sa.Text),
    sa.Column("model", sa.Text, comment="Canonical id; null only in the charge book, for a markup over cost."),
    sa.Column(
        "tenant_id", sa.Text, sa.ForeignKey("ledger.tenants.tenant_id"), comment="Charge book: null is the plan."
    ),
    sa.Column("currency", sa.CHAR(3), nullable=False),
    sa.Column("effective_at", Instant, nullable=False, comment="In force from here until the next card."),
    sa.Column("recorded_at", Instant, nullable=False, server_default=now(), comment="Known since."),
    sa.Column("is_withdrawal", sa.Boolean, nullable=False, server_default=sa.false(), comment="Ends the one before."),
    sa.Column(
        "body",
        JSONB,
        nullable=False,
        comment="Rates, bands, variants, hours and rules, as ledger.price_book reads them.",
    ),
    sa.Column("source_address", sa.Text, nullable=False),
    sa.Column(
        "checked_on", sa.Date, nullable=False, comment="When a person or an import last held it against its source."
    ),
    one_of("book", "cost", "charge"),
    # Serves the load of the book, in the order in which cards replace each other.
    sa.Index("ix_cards_lookup", "book", "provider", "model", "effective_at"),
    comment="Immutable: a changed price is a new card.",
)

exchange_rates = sa.Table(
    "exchange_rates",
    metadata,
    sa.Column("exchange_rate_id", sa.BigInteger, sa.Identity(), primary_key=True, comment="Order of recording."),
    sa.Column(
        "content_hash",
        Id,
        nullable=False,
        unique=True,
        comment="Over pair, rate, instant and what it replaces: rate sets name it in their selectors.",
    ),
    sa.Column("from_currency", sa.CHAR(3), nullable=False, comment="What is converted."),
    sa.Column("to_currency", sa.CHAR(3), nullable=False, comment="What it becomes."),
    sa.Column(
        "rate", Amount, nullable=False, comment="What one unit of from_currency is in to_currency; never rounded."
    ),
    sa.Column("effective_at", Instant, nullable=False, comment="In force from here until the next rate of the pair."),
    sa.Column("recorded_at", Instant, nullable=False, server_default=now(), comment="Known since."),
    sa.Column("source_address", sa.Text, nullable=False, comment="Where the rate stands."),
    sa.Column("checked_on", sa.Date, nullable=False, comment="When somebody last held it against its source."),
    sa.Column("replaces", Id, comment="content_hash of the rate that this one restates: same pair, same instant."),
    sa.CheckConstraint("rate > 0", name="rate_is_positive"),
    sa.CheckConstraint("from_currency <> to_currency", name="currencies_differ"),
    comment="Immutable: a changed rate is a new row.",
)

rate_sets = sa.Table(
    "rate_sets",
    metadata,
    sa.Column("rate_set_id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("content_hash", Id, nullable=False, unique=True),
    sa.Column("book", sa.Text, nullable=False),
    sa.Column("currency", sa.CHAR(3), nullable=False),
    sa.Column("card_hash", Id, nullable=False, comment="content_hash of the card that it resolves."),
    sa.Column("selectors", JSONB, nullable=False, comment="What chose it: tier, batch, band, hours, markup."),
    sa.Column("is_free", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("recorded_at", Instant, nullable=False, server_default=now()),
    one_of("book", "cost", "charge"),
    comment="Immutable: what a card resolves to for given selectors. Every priced entry names one per book.",
)

rates = sa.Table(
    "rates",
    metadata,
    sa.Column("rate_set_id", sa.BigInteger, sa.ForeignKey("ledger.rate_sets.rate_set_id"), primary_key=True),
    sa.Column("meter", sa.Text, primary_key=True),
    sa.Column("price", Amount, nullable=False, comment="In the set's currency, for `per` units; never rounded."),
    sa.Column("per", sa.BigInteger, nullable=False, comment="A power of ten, so that amounts are exact."),
    sa.Column("priced_as", sa.Text, comment="The meter whose rate this is, where the card had none for this one."),
    sa.CheckConstraint("price >= 0", name="price_is_not_negative"),
    sa.CheckConstraint(
        "per in (1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000)",
        name="per_is_a_power_of_ten",
    ),
    comment="One row per rate set and meter.",
)

# --- Feeds, batches, keys --------------------------------------------------------------------------------------------

feeds = sa.Table(
    "feeds",
    metadata,
    sa.Column("feed_id", sa.Integer, sa.Identity(), primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column(
        "name",
        sa.Text,
        nullable=False,
        unique=True,
        comment="kafka:cluster:topic id:partition, api:replica, load:id, commands.",
    ),
    sa.Column(
        "epoch",
        sa.BigInteger,
        nullable=False,
        server_default="0",
        comment="Raised by each claim; a writer with an older one is fenced.",
    ),
    sa.Column(
        "next_position",
        sa.BigInteger,
        nullable=False,
        server_default="0",
        comment="What is read next; moves in the transaction that posts.",
    ),
    sa.Column("last_number", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("last_hash", BYTEA, nullable=False, server_default=sa.text("'\\x'::bytea")),
    sa.Column("starts_here", sa.BigInteger, comment="A person's word that nothing before this position is wanted."),
    sa.Column("posted_until", Instant, comment="Append time up to which the feed is posted."),
    sa.Column(
        "start_position", sa.BigInteger, comment="Where the worker last started, and how often without progress."
    ),
    sa.Column("start_count", sa.Integer, nullable=False, server_default="0"),
    sa.Column("suspect_position", sa.BigInteger, comment="The message in hand when going one at a time."),
    sa.Column("suspect_count", sa.Integer, nullable=False, server_default="0"),
    sa.Column("created_at", Instant, nullable=False, server_default=now()),
    one_of("kind", "kafka", "api", "file", "load", "commands"),
    comment="Where batches come from.",
)

batches = sa.Table(
    "batches",
    metadata,
    sa.Column(
        "batch_id", sa.BigInteger, sa.Identity(), primary_key=True, comment="entry_id = batch_id x 65,536 + ordinal."
    ),
    sa.Column("feed_id", sa.Integer, sa.ForeignKey("ledger.feeds.feed_id"), nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False, comment="Gapless and in commit order inside the feed."),
    sa.Column("first_position", sa.BigInteger),
    sa.Column("next_position", sa.BigInteger, comment="Exclusive end of what the batch read."),
    sa.Column("created_count", sa.Integer, nullable=False),
    sa.Column("duplicate_count", sa.Integer, nullable=False),
    sa.Column("evidence_count", sa.Integer, nullable=False),
    sa.Column("conflict_count", sa.Integer, nullable=False),
    sa.Column("dead_letter_count", sa.Integer, nullable=False),
    sa.Column("entry_count", sa.Integer, nullable=False),
    sa.Column("recorded_at", Instant, nullable=False),
    sa.Column("previous_hash", BYTEA, nullable=False),
    sa.Column("hash", BYTEA, nullable=False),
    sa.Column("hash_version", sa.SmallInteger, nullable=False),
    # Serves the chain's walk, the rollups' watermarks and the look-up of an unknown outcome.
    sa.UniqueConstraint("feed_id", "number"),
    comment="One row per committed post.",
)

batch_digests = sa.Table(
    "batch_digests",
    metadata,
    sa.Column("batch_id", sa.BigInteger, sa.ForeignKey("ledger.batches.batch_id"), primary_key=True),
    sa.Column("posting_period", sa.Date, primary_key=True),
    sa.Column("row_count", sa.Integer, nullable=False),
    sa.Column("cost_sums", JSONB, nullable=False, comment="Amount by currency, decimal text."),
    sa.Column("charge_sums", JSONB, nullable=False),
    sa.Column("digest", BYTEA, nullable=False, comment="SHA-256 of the rows' COPY lines in entry_id order."),
    comment="One row per batch and posting period that it wrote to; outlives the rows.",
)

event_keys = sa.Table(
    "event_keys",
    metadata,
    sa.Column("key", Id, primary_key=True, comment="Identity of an event, a correction or a fee: unique for ever."),
    sa.Column("content_hash", Id, nullable=False),
    sa.Column("hash_version", sa.SmallInteger, nullable=False),
    sa.Column("batch_id", sa.BigInteger, nullable=False),
    comment="Insert only.",
)

requests = sa.Table(
    "requests",
    metadata,
    sa.Column("key", Id, primary_key=True),
    sa.Column("rank", ARRAY(sa.Integer), nullable=False, comment="Rank of the best statement so far."),
    sa.Column(
        "posting_period",
        sa.Date,
        nullable=False,
        comment="Where its first rows are: entry_id and the entry_count - 1 after it.",
    ),
    sa.Column("entry_id", sa.BigInteger, nullable=False),
    sa.Column("entry_count", sa.Integer, nullable=False),
    sa.Column(
        "occurred_at", Instant, nullable=False, comment="Of the first entry: it dates the price and the windows."
    ),
    sa.Column("best_event_key", Id, nullable=False),
    comment="A projection that the writer updates and `tallystick verify` rebuilds.",
    postgresql_with={"fillfactor": "85"},
)

# --- Entries ---------------------------------------------------------------------------------------------------------

# Listed in the order of the COPY lines, which the chain's digests cover.
ENTRY_COLUMNS: Final[tuple[sa.Column[Any], ...]] = (
    sa.Column("entry_id", sa.BigInteger, nullable=False),
    sa.Column("posting_period", sa.Date, nullable=False, comment="The month that it is billed in."),
    sa.Column("batch_id", sa.BigInteger, nullable=False),
    sa.Column("event_key", Id, nullable=False),
    sa.Column("request_key", Id),
    sa.Column("entry_no", sa.SmallInteger, nullable=False, comment="Position among the rows of one statement."),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("corrects_entry_id", sa.BigInteger, comment="The first entry of the request that it corrects."),
    sa.Column("occurred_at", Instant, nullable=False, comment="When the call ended, by the reporter's clock."),
    sa.Column("recorded_at", Instant, nullable=False, comment="When the row was written, by the database's clock."),
    sa.Column("local_date", sa.Date, nullable=False, comment="Of occurred_at, in the tenant's zone."),
    *(
        sa.Column(
            name, sa.Text, nullable=name not in {"tenant_id", "sent_tenant_id", "source", "language", "status", "basis"}
        )
        for name in DIMENSIONS
    ),
    sa.Column("subject_id", Id),
    sa.Column("tags", JSONB),
    sa.Column("attempt", sa.SmallInteger),
    sa.Column("sequence", sa.BigInteger, comment="The source's own counter, for gaps."),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("is_final", sa.Boolean, nullable=False),
    sa.Column("reservation_open", sa.Boolean, nullable=False, comment="More attempts follow under the reservation."),
    sa.Column("request_count", sa.SmallInteger, nullable=False, comment="1, 0 or -1: sums to the number of requests."),
    *(sa.Column(name, sa.BigInteger) for name in COLUMN_METERS),
    sa.Column("input_tokens", sa.BigInteger, comment="All input token meters, rare ones included; not a meter itself."),
    sa.Column(
        "output_tokens", sa.BigInteger, comment="All output token meters, rare ones included; not a meter itself."
    ),
    sa.Column("avoided_tokens", sa.BigInteger, comment="Counts of a gateway's own cache hit: not used, not billed."),
    sa.Column("other_quantities", JSONB, comment="Rare meters: {meter: count}."),
    sa.Column("reported", JSONB, comment="Evidence: its own counts. Otherwise what the counts said besides."),
    sa.Column("cost_amount", Amount, comment="What we owe the provider, unrounded; null while unpriced."),
    sa.Column("cost_currency", sa.CHAR(3)),
    sa.Column("cost_rate_set_id", sa.BigInteger),
    sa.Column("charge_amount", Amount, comment="What the tenant owes us, unrounded; null while unpriced."),
    sa.Column("charge_currency", sa.CHAR(3)),
    sa.Column("charge_rate_set_id", sa.BigInteger),
    sa.Column("usage_flags", ARRAY(sa.Text), nullable=False),
    sa.Column(
        "unpriced_meters", ARRAY(sa.Text), nullable=False, comment="Why an amount is null: book:meter, or book:model."
    ),
    sa.Column("max_output_tokens", sa.BigInteger),
    sa.Column("delivered_output_tokens", sa.BigInteger),
    sa.Column("provider_calls", sa.Integer),
    sa.Column("latency_ms", sa.BigInteger),
    sa.Column("ttft_ms", sa.BigInteger),
    sa.Column("queue_ms", sa.BigInteger),
    sa.Column("prefill_ms", sa.BigInteger),
    sa.Column("decode_ms", sa.BigInteger),
    sa.Column("raw_digest", Id, comment="SHA-256, cut, of the raw usage object, which is kept apart and for a time."),
    sa.Column("reason", sa.Text, comment="Of a correction."),
    sa.Column("actor", sa.Text),
)

entries = sa.Table(
    "entries",
    metadata,
    *ENTRY_COLUMNS,
    sa.PrimaryKeyConstraint("posting_period", "entry_id"),
    one_of("kind", "usage", "true_up", "adjustment", "reversal", "evidence", "fee"),
    sa.CheckConstraint("request_count between -1 and 1", name="request_count_folds"),
    sa.CheckConstraint("(cost_amount is null) or (cost_currency is not null)", name="cost_has_a_currency"),
    sa.CheckConstraint("(charge_amount is null) or (charge_currency is not null)", name="charge_has_a_currency"),
    sa.CheckConstraint(
        "kind <> 'evidence' or (request_count = 0 and coalesce(charge_amount, 0) = 0 and coalesce(cost_amount, 0) = 0)",
        name="evidence_moves_nothing",
    ),
    # Serves "who spent what, since when" and the API's usage by tenant.
    sa.Index("ix_entries_tenant_id_occurred_at", "tenant_id", "occurred_at"),
    # Serves the fold of what stands for a request.
    sa.Index(
        "ix_entries_corrects_entry_id", "corrects_entry_id", postgresql_where=sa.text("corrects_entry_id is not null")
    ),
    comment="One row per accepted report and priced part: the facts. Rows are added, never changed.",
    postgresql_partition_by="list (posting_period)",
)

raw_usage = sa.Table(
    "raw_usage",
    metadata,
    sa.Column("received_month", sa.Date, nullable=False),
    sa.Column("entry_id", sa.BigInteger, nullable=False),
    sa.Column("flavour", sa.Text, nullable=False),
    sa.Column("parser_version", sa.SmallInteger, nullable=False),
    sa.Column("usage", JSONB, nullable=False, comment="The provider's object, cut to numeric and enum keys."),
    sa.PrimaryKeyConstraint("received_month", "entry_id"),
    comment="What the counts were read from, so that a wrong mapping can be replayed; partitioned by month of receipt.",
    postgresql_partition_by="list (received_month)",
)

dead_letters = sa.Table(
    "dead_letters",
    metadata,
    sa.Column("dead_letter_id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("origin", sa.Text, nullable=False, comment="Feed or credential that brought it."),
    sa.Column("bytes_hash", BYTEA, nullable=False, comment="SHA-256 of the bytes."),
    sa.Column("bytes", BYTEA, comment="As received; null once expired."),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Column("event_key", Id, comment="Set where the identity could be read, so for each conflict."),
    sa.Column("first_hash", Id, comment="Conflict: content hash of what was accepted first."),
    sa.Column("second_hash", Id, comment="Conflict: content hash of this one."),
    sa.Column("batch_id", sa.BigInteger, nullable=False),
    sa.Column("first_at", Instant, nullable=False),
    sa.Column("last_at", Instant, nullable=False),
    sa.Column("repeats", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("owner", sa.Text),
    sa.Column("note", sa.Text),
    sa.Column("resolved_at", Instant),
    # Serves the count of repeats: the same bytes from the same origin are one letter.
    sa.UniqueConstraint("origin", "bytes_hash"),
    comment="What was acknowledged and could not be posted, with its bytes and the reason.",
)

node_windows = sa.Table(
    "node_windows",
    metadata,
    sa.Column("event_key", Id, primary_key=True),
    sa.Column("tenant_id", sa.Text, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("node_id", sa.Text, nullable=False),
    sa.Column("starts_at", Instant, nullable=False),
    sa.Column("ends_at", Instant, nullable=False),
    sa.Column("body", JSONB, nullable=False),
    sa.Column("batch_id", sa.BigInteger, nullable=False),
    comment="One row per report of a GPU node about itself over a span of time.",
)

acts = sa.Table(
    "acts",
    metadata,
    sa.Column("act_id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("at", Instant, nullable=False, server_default=now()),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("act", sa.Text, nullable=False),
    sa.Column("detail", JSONB, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("second_person", sa.Text),
    comment="Who changed what by command, and why.",
)

reader_tenants = sa.Table(
    "reader_tenants",
    metadata,
    sa.Column("login", sa.Text, primary_key=True),
    sa.Column("tenant_id", sa.Text, sa.ForeignKey("ledger.tenants.tenant_id"), primary_key=True),
    comment="The tenants that a login of the group tallystick_reader may see.",
)

routines = sa.Table(
    "routines",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("sha256", sa.Text, nullable=False),
    comment="Which text of each sql/ file was last applied, so that a migration touches only what changed.",
)
