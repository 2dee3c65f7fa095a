"""The tables of the schema `ledger`. What they promise stands in this room's pages; functions and triggers in sql/."""

from collections.abc import Iterable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA, INT8MULTIRANGE, JSONB, TIMESTAMP, UUID

from ledger.api_keys import DEFAULT_SCOPES, SCOPES
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


def text_array(values: Iterable[str]) -> str:
    """Return known words as SQL's array of text."""
    return "array[" + ", ".join(f"'{value}'" for value in values) + "]::text[]"


versions = sa.Table(
    "versions",
    metadata,
    sa.Column(
        "is_only", sa.Boolean, primary_key=True, server_default=sa.true(), comment="Always true: there is one row."
    ),
    sa.Column(
        "calendar",
        sa.BigInteger,
        nullable=False,
        server_default="1",
        comment="Raised by a change of periods or of tenants' zones.",
    ),
    sa.Column(
        "parties",
        sa.BigInteger,
        nullable=False,
        server_default="1",
        comment="Raised by a change of tenants, sources, accounts, models or names.",
    ),
    sa.Column(
        "prices", sa.BigInteger, nullable=False, server_default="1", comment="Raised by a new card or exchange rate."
    ),
    sa.Column("budgets", sa.BigInteger, nullable=False, server_default="1", comment="Raised by a change of budgets."),
    sa.CheckConstraint("is_only", name="is_one_row"),
    comment="One row: raised under the exclusive calendar lock by whoever changes periods, parties, prices or budgets.",
)

# --- Parties ---------------------------------------------------------------------------------------------------------

entities = sa.Table(
    "entities",
    metadata,
    sa.Column("entity_id", sa.Text, primary_key=True, comment="Chosen by the operator."),
    sa.Column("name", sa.Text, nullable=False, comment="As it stands on invoices."),
    sa.Column("created_at", Instant, nullable=False, server_default=now(), comment="When it was added."),
    comment="One row per legal entity that issues invoices.",
)

tenants = sa.Table(
    "tenants",
    metadata,
    sa.Column("tenant_id", sa.Text, primary_key=True, comment="Opaque; names and addresses stay with the caller."),
    sa.Column("created_at", Instant, nullable=False, server_default=now(), comment="When it was added."),
    sa.Column("starts_at", Instant, nullable=False, comment="Periods begin with the month of this instant."),
    sa.Column("ends_at", Instant, comment="Exclusive; null while the tenant stays. Periods go on for late usage."),
    sa.Column(
        "merged_into",
        sa.Text,
        sa.ForeignKey("ledger.tenants.tenant_id"),
        comment="Who pays for its usage from merged_at on.",
    ),
    sa.Column("merged_at", Instant, comment="Usage that occurred from here on belongs to merged_into."),
    sa.Column("unmerged_at", Instant, comment="Usage that occurred from here on is its own again; null: never."),
    sa.CheckConstraint("(merged_into is null) = (merged_at is null)", name="merge_has_its_time"),
    sa.CheckConstraint("unmerged_at is null or unmerged_at > merged_at", name="merge_ends_after_it_begins"),
    sa.CheckConstraint("merged_into <> tenant_id", name="is_not_merged_into_itself"),
    comment="One row per tenant.",
)

tenant_versions = sa.Table(
    "tenant_versions",
    metadata,
    sa.Column(
        "tenant_id",
        sa.Text,
        sa.ForeignKey("ledger.tenants.tenant_id"),
        primary_key=True,
        comment="Whose version it is.",
    ),
    sa.Column(
        "effective_at",
        Instant,
        primary_key=True,
        comment="A period start of the tenant, or its start; of a status, any time.",
    ),
    sa.Column(
        "entity_id",
        sa.Text,
        sa.ForeignKey("ledger.entities.entity_id"),
        nullable=False,
        comment="Who invoices the tenant.",
    ),
    sa.Column("name", sa.Text, comment="For people; entries do not hold it."),
    sa.Column("time_zone", sa.Text, nullable=False, comment="Of its days, months and budgets."),
    sa.Column("charge_currency", sa.CHAR(3), nullable=False, comment="What it is charged in, ISO 4217."),
    sa.Column(
        "first_day",
        sa.Date,
        comment="No local day of it is before this one: that of effective_at by the clocks until then; null for the first.",
    ),
    sa.Column(
        "status",
        sa.Text,
        nullable=False,
        server_default="active",
        comment="active; suspended: recorded, nothing more admitted; left: gone, late usage is still recorded.",
    ),
    sa.Column(
        "recorded_at", Instant, nullable=False, server_default=now(), comment="When the change was written down."
    ),
    one_of("status", "active", "suspended", "left"),
    comment="One row per tenant and change: in force from effective_at until the next.",
)

sources = sa.Table(
    "sources",
    metadata,
    sa.Column("source", sa.Text, primary_key=True, comment="The CloudEvents source, exactly as sent."),
    sa.Column("kind", sa.Text, nullable=False, comment="gateway, node, load (a backfill) or commands."),
    sa.Column("rank", sa.Integer, nullable=False, comment="Between two reports of a request the higher rank counts."),
    sa.Column(
        "speaks_for_all",
        sa.Boolean,
        nullable=False,
        server_default=sa.false(),
        comment="For every tenant; otherwise source_tenants lists them.",
    ),
    sa.Column("created_at", Instant, nullable=False, server_default=now(), comment="When it was registered."),
    sa.Column("ended_at", Instant, comment="From here on what it sends is a dead letter; null while it may speak."),
    one_of("kind", "gateway", "node", "load", "commands"),
    comment="One row per registered sender.",
)

source_tenants = sa.Table(
    "source_tenants",
    metadata,
    sa.Column("source", sa.Text, sa.ForeignKey("ledger.sources.source"), primary_key=True, comment="Who speaks."),
    sa.Column("tenant_id", sa.Text, sa.ForeignKey("ledger.tenants.tenant_id"), primary_key=True, comment="For whom."),
    comment="The tenants that a source may speak for, where it does not speak for all.",
)

provider_accounts = sa.Table(
    "provider_accounts",
    metadata,
    sa.Column("provider_account", sa.Text, primary_key=True, comment="As events name it."),
    sa.Column("provider", sa.Text, nullable=False, comment="Who bills it."),
    sa.Column("currency", sa.CHAR(3), nullable=False, comment="What it is billed in, ISO 4217."),
    sa.Column("created_at", Instant, nullable=False, server_default=now(), comment="When it was added."),
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
    sa.Column("provider", sa.Text, primary_key=True, comment="Who serves it, as events name it."),
    sa.Column("model", sa.Text, primary_key=True, comment="The canonical id."),
    sa.Column("input_tokens_max", sa.BigInteger, comment="A report above it is impossible; null where unknown."),
    sa.Column("output_tokens_max", sa.BigInteger, comment="A report above it is impossible; null where unknown."),
    sa.Column("created_at", Instant, nullable=False, server_default=now(), comment="When it was added."),
    comment="One row per provider and model that we know.",
)

model_aliases = sa.Table(
    "model_aliases",
    metadata,
    sa.Column("provider", sa.Text, primary_key=True, comment="Whose name it is."),
    sa.Column("alias", sa.Text, primary_key=True, comment="Matched whole; nothing matches loosely."),
    sa.Column("model", sa.Text, nullable=False, comment="The canonical id."),
    sa.Column(
        "source",
        sa.Text,
        nullable=False,
        comment="Who says that the two are one: an import with its version, a command, a proposal.",
    ),
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
    sa.Column(
        "subject_id",
        Id,
        primary_key=True,
        server_default=sa.text("gen_random_uuid()"),
        comment="What entries hold: random, and nothing by itself.",
    ),
    sa.Column("tenant_id", sa.Text, nullable=False, comment="Whose user it is."),
    sa.Column("user_hash", sa.Text, comment="The sender's hash; erasure sets it to null, and entries keep a bare id."),
    sa.Column("created_at", Instant, nullable=False, server_default=now(), comment="When it was first seen."),
    # Serves the look-up of a sender's hash while a batch is prepared.
    sa.UniqueConstraint("tenant_id", "user_hash"),
    comment="Mutable and outside the chain: links the subject of an entry to the sender's hash of its user.",
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("key_id", sa.Text, primary_key=True, comment="The public part, such as tsk_1a2b3c4d."),
    sa.Column("secret_hash", BYTEA, nullable=False, comment="SHA-256 of the secret part, which is 32 random bytes."),
    sa.Column(
        "tenant_id",
        sa.Text,
        sa.ForeignKey("ledger.tenants.tenant_id"),
        comment="The tenant that it belongs to, whose word then rules over the body's; or null.",
    ),
    sa.Column(
        "source", sa.Text, sa.ForeignKey("ledger.sources.source"), comment="The source that it belongs to; or null."
    ),
    sa.Column("created_at", Instant, nullable=False, server_default=now(), comment="When it was made."),
    sa.Column("revoked_at", Instant, comment="From here on it opens nothing; null while it is good."),
    sa.Column("note", sa.Text, comment="What it is for, for people."),
    sa.Column(
        "scopes",
        ARRAY(sa.Text),
        nullable=False,
        comment="What it may do, such as events:write. Those that change things for everybody are operators' keys' alone.",
    ),
    sa.Column("expires_at", Instant, comment="From here on it opens nothing; null: it does not expire."),
    sa.Column(
        "last_used_at",
        Instant,
        comment="When it was last used, as a process of the API wrote down up to a minute after; null: never.",
    ),
    sa.CheckConstraint("num_nonnulls(tenant_id, source) <= 1", name="belongs_to_one_at_most"),
    sa.CheckConstraint(
        f"cardinality(scopes) > 0 and scopes <@ {text_array(SCOPES)}",
        name="scopes_are_known",
    ),
    sa.CheckConstraint(
        f"num_nonnulls(tenant_id, source) = 0 or scopes <@ {text_array(DEFAULT_SCOPES)}",
        name="only_operators_administer",
    ),
    comment="A credential belongs to one tenant, to one source, or, where it names neither, to an operator.",
)

periods = sa.Table(
    "periods",
    metadata,
    sa.Column(
        "tenant_id", sa.Text, sa.ForeignKey("ledger.tenants.tenant_id"), primary_key=True, comment="Whose month it is."
    ),
    sa.Column("posting_period", sa.Date, primary_key=True, comment="The first day of the month."),
    sa.Column("starts_at", Instant, nullable=False, comment="Inclusive: local midnight of the first day."),
    sa.Column("ends_at", Instant, nullable=False, comment="Exclusive: the local midnight that starts the next month."),
    sa.Column("grace_until", Instant, nullable=False, comment="Late usage enters until here, then the next period."),
    sa.Column(
        "state",
        sa.Text,
        nullable=False,
        server_default="open",
        comment="open: takes entries; closed: the database refuses them.",
    ),
    sa.Column(
        "close_number",
        sa.Integer,
        nullable=False,
        server_default="0",
        comment="How often it was closed; of its seals the one of this number counts.",
    ),
    sa.Column("closed_at", Instant, comment="When it was last closed; null while it is open."),
    one_of("state", "open", "closed"),
    sa.CheckConstraint("extract(day from posting_period) = 1", name="is_a_month"),
    sa.CheckConstraint("starts_at < ends_at", name="has_a_length"),
    sa.CheckConstraint("grace_until >= ends_at or state = 'closed'", name="grace_is_after_the_end"),
    comment="One row per tenant and month, half-open in the tenant's zone.",
)

# What a seal's lines are cut by and what they sum: as the marts do, whose fold they become once the rows are gone.
SEAL_DIMENSIONS: Final = (
    ("feature", "What it was for."),
    ("language", "Primary subtag plus script of the text; und where unknown."),
    ("provider", "Who served the calls."),
    ("model", "The canonical id; null where the name is nobody's."),
    ("route", "The route in the gateway."),
    ("lane", "interactive or batch."),
    ("cost_currency", "Of cost_amount, ISO 4217; null while unpriced."),
    ("charge_currency", "Of charge_amount, ISO 4217."),
)
SEAL_MEASURES: Final = (
    ("entry_count", "Ledger rows folded into it, evidence not."),
    ("evidence_count", "Rows of reports that were not the best of their request."),
    ("request_count", "Requests, each once."),
    ("estimated_count", "Requests, of request_count, known by an estimate only."),
    ("usage_missing_count", "Requests, of request_count, without usage."),
    ("uncached_input_tokens", "Text input that came from no cache and went into none."),
    ("cache_read_tokens", "Text input read from the provider's cache."),
    ("cache_write_5m_tokens", "Input written to a cache for five minutes."),
    ("cache_write_1h_tokens", "Input written to a cache for an hour."),
    ("cache_write_other_tokens", "Input written to a cache for a time that nobody stated."),
    ("visible_output_tokens", "Text output that the caller sees."),
    ("reasoning_tokens", "Output that the caller does not see."),
    ("input_tokens", "All input token meters."),
    ("output_tokens", "All output token meters."),
    ("avoided_tokens", "Counts of a gateway's own cache hits: not used, not billed."),
    ("cost_amount", "What we owe the provider, unrounded; what is unpriced adds nothing."),
    ("cost_unpriced_count", "Requests, of request_count, without a cost."),
    ("cost_unpriced_tokens", "Tokens whose cost is unknown."),
    ("charge_amount", "What the tenant owes, unrounded; what is unpriced adds nothing."),
    ("charge_unpriced_count", "Requests, of request_count, without a charge."),
    ("charge_unpriced_tokens", "Tokens whose charge is unknown."),
)

seals = sa.Table(
    "seals",
    metadata,
    sa.Column("tenant_id", sa.Text, primary_key=True, comment="Whose month it is."),
    sa.Column("posting_period", sa.Date, primary_key=True, comment="The first day of the month."),
    sa.Column(
        "close_number",
        sa.Integer,
        primary_key=True,
        comment="Of the close that it seals; a lower one than the period's is superseded.",
    ),
    sa.Column("sealed_at", Instant, nullable=False, server_default=now(), comment="When it was made."),
    sa.Column("line_count", sa.BigInteger, nullable=False, comment="Rows of seal_lines that it covers."),
    sa.Column(
        "row_count", sa.BigInteger, nullable=False, comment="Rows of the ledger in the month, evidence included."
    ),
    sa.Column("request_count", sa.BigInteger, nullable=False, comment="Requests, each once."),
    sa.Column(
        "cost_sums",
        JSONB,
        nullable=False,
        comment="What we owe providers: {currency: decimal string}, unrounded.",
    ),
    sa.Column(
        "charge_sums",
        JSONB,
        nullable=False,
        comment="What the tenant owes: {currency: decimal string}, unrounded.",
    ),
    sa.Column(
        "cost_unpriced_count", sa.BigInteger, nullable=False, comment="Requests, of request_count, without a cost."
    ),
    sa.Column(
        "charge_unpriced_count", sa.BigInteger, nullable=False, comment="Requests, of request_count, without a charge."
    ),
    sa.Column(
        "usage_missing_count", sa.BigInteger, nullable=False, comment="Requests, of request_count, without usage."
    ),
    sa.Column("digest", BYTEA, nullable=False, comment="SHA-256 over the canonical text of its lines."),
    sa.Column("digest_version", sa.SmallInteger, nullable=False, comment="Of the canonical text: ledger/seals.py."),
    sa.ForeignKeyConstraint(
        ["tenant_id", "posting_period"], ["ledger.periods.tenant_id", "ledger.periods.posting_period"]
    ),
    comment="One row per close of a tenant's month: what it came to. Immutable; survives the month's rows.",
)

seal_lines = sa.Table(
    "seal_lines",
    metadata,
    sa.Column("tenant_id", sa.Text, primary_key=True, comment="Whose month it is."),
    sa.Column("posting_period", sa.Date, primary_key=True, comment="The first day of the month."),
    sa.Column("close_number", sa.Integer, primary_key=True, comment="Of the seal that it belongs to."),
    sa.Column("line_number", sa.Integer, primary_key=True, comment="Its place in the canonical text, from 1."),
    sa.Column("local_date", sa.Date, nullable=False, comment="Day of the usage in the tenant's zone."),
    *(sa.Column(name, sa.Text, nullable=name != "language", comment=comment) for name, comment in SEAL_DIMENSIONS),
    *(
        sa.Column(name, Amount if name.endswith("_amount") else sa.BigInteger, nullable=False, comment=comment)
        for name, comment in SEAL_MEASURES
    ),
    sa.ForeignKeyConstraint(
        ["tenant_id", "posting_period", "close_number"],
        ["ledger.seals.tenant_id", "ledger.seals.posting_period", "ledger.seals.close_number"],
    ),
    comment="One row per seal, local day and the dimensions of the marts: what rollups of a retired month are folded from.",
)

# --- Prices ----------------------------------------------------------------------------------------------------------

cards = sa.Table(
    "cards",
    metadata,
    sa.Column("card_id", sa.BigInteger, sa.Identity(), primary_key=True, comment="Order of recording."),
    sa.Column(
        "book", sa.Text, nullable=False, comment="cost: what we owe the provider; charge: what the tenant owes us."
    ),
    sa.Column("content_hash", Id, nullable=False, unique=True, comment="So that an import can be repeated."),
    sa.Column("provider", sa.Text, nullable=False, comment="Whose model it prices."),
    sa.Column("provider_account", sa.Text, comment="Only usage of this account; null: any."),
    sa.Column("deployment", sa.Text, comment="Only usage of this deployment; null: any."),
    sa.Column("model", sa.Text, comment="Canonical id; null only in the charge book, for a markup over cost."),
    sa.Column(
        "tenant_id", sa.Text, sa.ForeignKey("ledger.tenants.tenant_id"), comment="Charge book: null is the plan."
    ),
    sa.Column("currency", sa.CHAR(3), nullable=False, comment="Of all its prices, ISO 4217."),
    sa.Column("effective_at", Instant, nullable=False, comment="In force from here until the next card."),
    sa.Column("recorded_at", Instant, nullable=False, server_default=now(), comment="Known since."),
    sa.Column("is_withdrawal", sa.Boolean, nullable=False, server_default=sa.false(), comment="Ends the one before."),
    sa.Column(
        "body",
        JSONB,
        nullable=False,
        comment="Rates, bands, variants, hours and rules, as ledger.price_book reads them.",
    ),
    sa.Column("source_address", sa.Text, nullable=False, comment="Where the prices stand: an address or a document."),
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
    sa.Column("rate_set_id", sa.BigInteger, sa.Identity(), primary_key=True, comment="What entries name."),
    sa.Column(
        "content_hash", Id, nullable=False, unique=True, comment="Over everything that it says, its rates included."
    ),
    sa.Column("book", sa.Text, nullable=False, comment="cost or charge."),
    sa.Column("currency", sa.CHAR(3), nullable=False, comment="Of its rates and of what they price."),
    sa.Column("card_hash", Id, nullable=False, comment="content_hash of the card that it resolves."),
    sa.Column("selectors", JSONB, nullable=False, comment="What chose it: tier, batch, band, hours, markup."),
    sa.Column(
        "is_free",
        sa.Boolean,
        nullable=False,
        server_default=sa.false(),
        comment="Every price in it is zero, and is meant to be.",
    ),
    sa.Column("recorded_at", Instant, nullable=False, server_default=now(), comment="When an entry first needed it."),
    one_of("book", "cost", "charge"),
    comment="Immutable: what a card resolves to for given selectors. Every priced entry names one per book.",
)

rates = sa.Table(
    "rates",
    metadata,
    sa.Column(
        "rate_set_id",
        sa.BigInteger,
        sa.ForeignKey("ledger.rate_sets.rate_set_id"),
        primary_key=True,
        comment="The set that it belongs to.",
    ),
    sa.Column("meter", sa.Text, primary_key=True, comment="What is counted."),
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
    sa.Column("feed_id", sa.Integer, sa.Identity(), primary_key=True, comment="What batches name."),
    sa.Column(
        "kind",
        sa.Text,
        nullable=False,
        comment="kafka: a partition; api: a replica; file, load: a run of one; commands: corrections.",
    ),
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
    sa.Column(
        "last_number",
        sa.BigInteger,
        nullable=False,
        server_default="0",
        comment="Of its newest batch; 0 before the first.",
    ),
    sa.Column(
        "last_hash",
        BYTEA,
        nullable=False,
        server_default=sa.text("'\\x'::bytea"),
        comment="Of its newest batch: the head of its chain.",
    ),
    sa.Column("starts_here", sa.BigInteger, comment="A person's word that nothing before this position is wanted."),
    sa.Column("posted_until", Instant, comment="Append time up to which the feed is posted."),
    sa.Column(
        "start_position", sa.BigInteger, comment="Where the worker last started, and how often without progress."
    ),
    sa.Column(
        "start_count",
        sa.Integer,
        nullable=False,
        server_default="0",
        comment="How often a worker has started at start_position.",
    ),
    sa.Column("suspect_position", sa.BigInteger, comment="The message in hand when going one at a time."),
    sa.Column(
        "suspect_count",
        sa.Integer,
        nullable=False,
        server_default="0",
        comment="How often the message at suspect_position was in hand.",
    ),
    sa.Column("created_at", Instant, nullable=False, server_default=now(), comment="When it was first claimed."),
    one_of("kind", "kafka", "api", "file", "load", "commands"),
    comment="Where batches come from.",
)

batches = sa.Table(
    "batches",
    metadata,
    sa.Column(
        "batch_id", sa.BigInteger, sa.Identity(), primary_key=True, comment="entry_id = batch_id x 65,536 + ordinal."
    ),
    sa.Column(
        "feed_id", sa.Integer, sa.ForeignKey("ledger.feeds.feed_id"), nullable=False, comment="Where it came from."
    ),
    sa.Column("number", sa.BigInteger, nullable=False, comment="Gapless and in commit order inside the feed."),
    sa.Column("first_position", sa.BigInteger, comment="Where it began to read; null for feeds without positions."),
    sa.Column("next_position", sa.BigInteger, comment="Exclusive end of what the batch read."),
    sa.Column("created_count", sa.Integer, nullable=False, comment="Events that became rows other than evidence."),
    sa.Column("duplicate_count", sa.Integer, nullable=False, comment="Events that were there with the same content."),
    sa.Column(
        "evidence_count",
        sa.Integer,
        nullable=False,
        comment="Reports that beat nothing, kept as rows that move nothing.",
    ),
    sa.Column("conflict_count", sa.Integer, nullable=False, comment="Events that were there with other content."),
    sa.Column("dead_letter_count", sa.Integer, nullable=False, comment="Events that could not be posted."),
    sa.Column("entry_count", sa.Integer, nullable=False, comment="Rows that it wrote to ledger.entries."),
    sa.Column("recorded_at", Instant, nullable=False, comment="The database's clock in its first statement."),
    sa.Column(
        "previous_hash", BYTEA, nullable=False, comment="Of the batch before it in its feed; empty for the first."
    ),
    sa.Column(
        "hash", BYTEA, nullable=False, comment="Over feed, number, previous hash, positions, counts and digests."
    ),
    sa.Column("hash_version", sa.SmallInteger, nullable=False, comment="How the hash was made."),
    sa.Column(
        "windows_digest",
        BYTEA,
        comment="SHA-256 over the rows of ledger.node_windows that it brought; null where it brought none.",
    ),
    # Serves the chain's walk, the rollups' watermarks and the look-up of an unknown outcome.
    sa.UniqueConstraint("feed_id", "number"),
    # Serves "what arrived in these hours": checks read an hour of a table that only grows. Rows lie in order of time, so a
    # summary of each stretch of blocks is enough, and costs those who post nearly nothing.
    sa.Index("ix_batches_recorded_at", "recorded_at", postgresql_using="brin"),
    comment="One row per committed post.",
)

batch_digests = sa.Table(
    "batch_digests",
    metadata,
    sa.Column(
        "batch_id",
        sa.BigInteger,
        sa.ForeignKey("ledger.batches.batch_id"),
        primary_key=True,
        comment="The batch that wrote the rows.",
    ),
    sa.Column("posting_period", sa.Date, primary_key=True, comment="The month that they were posted in."),
    sa.Column("row_count", sa.Integer, nullable=False, comment="How many there are."),
    sa.Column("cost_sums", JSONB, nullable=False, comment="Amount by currency, decimal text."),
    sa.Column("charge_sums", JSONB, nullable=False, comment="Amount by currency, decimal text."),
    sa.Column("digest", BYTEA, nullable=False, comment="SHA-256 of the rows' COPY lines in entry_id order."),
    sa.Column(
        "row_marks",
        BYTEA,
        comment="CRC-32 of each line, four bytes each: says which row differs where the digest says that one does. Null before there were any.",
    ),
    comment="One row per batch and posting period that it wrote to; outlives the rows.",
)

event_keys = sa.Table(
    "event_keys",
    metadata,
    sa.Column("key", Id, primary_key=True, comment="Identity of an event, a correction or a fee: unique for ever."),
    sa.Column("content_hash", Id, nullable=False, comment="Tells a copy from a conflict."),
    sa.Column("hash_version", sa.SmallInteger, nullable=False, comment="How the content hash was made."),
    sa.Column("batch_id", sa.BigInteger, nullable=False, comment="The batch that claimed it."),
    comment="Insert only.",
)

requests = sa.Table(
    "requests",
    metadata,
    sa.Column(
        "key", Id, primary_key=True, comment="Identity of one upstream attempt that somebody bills, or of a fee."
    ),
    sa.Column("rank", ARRAY(sa.Integer), nullable=False, comment="Rank of the best statement so far."),
    sa.Column(
        "posting_period",
        sa.Date,
        nullable=False,
        comment="Where its first rows are: entry_id and the entry_count - 1 after it.",
    ),
    sa.Column("entry_id", sa.BigInteger, nullable=False, comment="Of its first row, which corrections name."),
    sa.Column("entry_count", sa.Integer, nullable=False, comment="How many rows its first statement made."),
    sa.Column(
        "occurred_at", Instant, nullable=False, comment="Of the first entry: it dates the price and the windows."
    ),
    sa.Column("best_event_key", Id, nullable=False, comment="The statement that counts."),
    sa.Column(
        "counted",
        sa.BigInteger,
        comment="Fingerprint of the counts and prices of the statement that counts: a report with the same says the same.",
    ),
    comment="A projection that the writer updates and `tallystick verify` rebuilds.",
    postgresql_with={"fillfactor": "85"},
)

# --- Entries ---------------------------------------------------------------------------------------------------------

_DIMENSION_COMMENTS: Final = {
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
}

_METER_COMMENTS: Final = {
    "uncached_input_tokens": "Text input that came from no cache and went into none.",
    "cache_read_tokens": "Text input read from the provider's cache.",
    "cache_write_5m_tokens": "Input written to a cache for five minutes.",
    "cache_write_1h_tokens": "Input written to a cache for an hour.",
    "cache_write_other_tokens": "Input written to a cache for a time that nobody stated.",
    "visible_output_tokens": "Text output that the caller sees.",
    "reasoning_tokens": "Output that the caller does not see.",
}

# Listed in the order of the COPY lines, which the chain's digests cover.
ENTRY_COLUMNS: Final[tuple[sa.Column[Any], ...]] = (
    sa.Column(
        "entry_id",
        sa.BigInteger,
        nullable=False,
        comment="batch_id x 65,536 + the row's place in its batch: order of recording inside a feed.",
    ),
    sa.Column("posting_period", sa.Date, nullable=False, comment="The month that it is billed in."),
    sa.Column("batch_id", sa.BigInteger, nullable=False, comment="The batch that wrote it."),
    sa.Column(
        "event_key",
        Id,
        nullable=False,
        comment="Of the event, fee or correction that it comes from; its rows share it.",
    ),
    sa.Column("request_key", Id, comment="Of the request that it is about; null where it claims none."),
    sa.Column("entry_no", sa.SmallInteger, nullable=False, comment="Position among the rows of one statement."),
    sa.Column(
        "kind",
        sa.Text,
        nullable=False,
        comment="usage: the first report; true_up: a better one minus what stood; adjustment: a corrected price; reversal; fee: for an operation; evidence: moves nothing.",
    ),
    sa.Column("corrects_entry_id", sa.BigInteger, comment="The first entry of the request that it corrects."),
    sa.Column("occurred_at", Instant, nullable=False, comment="When the call ended, by the reporter's clock."),
    sa.Column("recorded_at", Instant, nullable=False, comment="When the row was written, by the database's clock."),
    sa.Column("local_date", sa.Date, nullable=False, comment="Of occurred_at, in the tenant's zone."),
    *(
        sa.Column(
            name,
            sa.Text,
            nullable=name not in {"tenant_id", "sent_tenant_id", "source", "language", "status", "basis"},
            comment=_DIMENSION_COMMENTS[name],
        )
        for name in DIMENSIONS
    ),
    sa.Column(
        "subject_id", Id, comment="The tenant's user, linked to the sender's hash in ledger.subjects until erased."
    ),
    sa.Column("tags", JSONB, comment="The sender's own labels."),
    sa.Column("attempt", sa.SmallInteger, comment="Which try of the operation it is, from 1, as sent."),
    sa.Column("sequence", sa.BigInteger, comment="The source's own counter, for gaps."),
    sa.Column(
        "revision", sa.Integer, nullable=False, comment="Which version of the report it is, as sent; 0 where none is."
    ),
    sa.Column("is_final", sa.Boolean, nullable=False, comment="False for a report of a call that goes on."),
    sa.Column("reservation_open", sa.Boolean, nullable=False, comment="More attempts follow under the reservation."),
    sa.Column("request_count", sa.SmallInteger, nullable=False, comment="1, 0 or -1: sums to the number of requests."),
    *(sa.Column(name, sa.BigInteger, comment=_METER_COMMENTS[name]) for name in COLUMN_METERS),
    sa.Column("input_tokens", sa.BigInteger, comment="All input token meters, rare ones included; not a meter itself."),
    sa.Column(
        "output_tokens", sa.BigInteger, comment="All output token meters, rare ones included; not a meter itself."
    ),
    sa.Column("avoided_tokens", sa.BigInteger, comment="Counts of a gateway's own cache hit: not used, not billed."),
    sa.Column("other_quantities", JSONB, comment="Rare meters: {meter: count}."),
    sa.Column("reported", JSONB, comment="Evidence: its own counts. Otherwise what the counts said besides."),
    sa.Column("cost_amount", Amount, comment="What we owe the provider, unrounded; null while unpriced."),
    sa.Column("cost_currency", sa.CHAR(3), comment="ISO 4217; null while nobody knows it."),
    sa.Column("cost_rate_set_id", sa.BigInteger, comment="The prices that made cost_amount; null where none did."),
    sa.Column("charge_amount", Amount, comment="What the tenant owes us, unrounded; null while unpriced."),
    sa.Column("charge_currency", sa.CHAR(3), comment="The tenant's, ISO 4217."),
    sa.Column("charge_rate_set_id", sa.BigInteger, comment="The prices that made charge_amount; null where none did."),
    sa.Column(
        "usage_flags",
        ARRAY(sa.Text),
        nullable=False,
        comment="States of the counts that people should see, such as usage_missing; ingest/README.md lists them.",
    ),
    sa.Column(
        "unpriced_meters", ARRAY(sa.Text), nullable=False, comment="Why an amount is null: book:meter, or book:model."
    ),
    sa.Column("max_output_tokens", sa.BigInteger, comment="The cap that the caller had set."),
    sa.Column("delivered_output_tokens", sa.BigInteger, comment="What reached the caller before it left."),
    sa.Column("provider_calls", sa.Integer, comment="Calls that the gateway says it made for this one."),
    sa.Column("latency_ms", sa.BigInteger, comment="From the request to the end of the answer."),
    sa.Column("ttft_ms", sa.BigInteger, comment="From the request to the first token."),
    sa.Column("queue_ms", sa.BigInteger, comment="Waiting at the node."),
    sa.Column("prefill_ms", sa.BigInteger, comment="Reading the input at the node."),
    sa.Column("decode_ms", sa.BigInteger, comment="Writing the output at the node."),
    sa.Column("raw_digest", Id, comment="SHA-256, cut, of the raw usage object, which is kept apart and for a time."),
    sa.Column("reason", sa.Text, comment="Of a correction."),
    sa.Column("actor", sa.Text, comment="Who corrected."),
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
    # Serves the list of proposals that wait for a person.
    sa.Index(
        "ix_entries_proposed",
        "recorded_at",
        postgresql_where=sa.text("kind = 'evidence' and usage_flags @> '{proposed}'"),
    ),
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
    sa.Column(
        "received_month", sa.Date, nullable=False, comment="First day of the month of recording, UTC: the partition."
    ),
    sa.Column("entry_id", sa.BigInteger, nullable=False, comment="The first row that was made from it."),
    sa.Column("flavour", sa.Text, nullable=False, comment="Whose usage object it is."),
    sa.Column("parser_version", sa.SmallInteger, nullable=False, comment="Of the reader that made the counts."),
    sa.Column("usage", JSONB, nullable=False, comment="The provider's object, cut to numeric and enum keys."),
    sa.PrimaryKeyConstraint("received_month", "entry_id"),
    comment="What the counts were read from, so that a wrong mapping can be replayed; partitioned by month of receipt.",
    postgresql_partition_by="list (received_month)",
)

dead_letters = sa.Table(
    "dead_letters",
    metadata,
    sa.Column("dead_letter_id", sa.BigInteger, sa.Identity(), primary_key=True, comment="What people name it by."),
    sa.Column("origin", sa.Text, nullable=False, comment="Feed or credential that brought it."),
    sa.Column("bytes_hash", BYTEA, nullable=False, comment="SHA-256 of the bytes."),
    sa.Column("bytes", BYTEA, comment="As received; null once expired."),
    sa.Column("reason", sa.Text, nullable=False, comment="A stable code; ingest/README.md lists them."),
    sa.Column("detail", sa.Text, nullable=False, comment="One line for a person: the field and the rule."),
    sa.Column("event_key", Id, comment="Set where the identity could be read, so for each conflict."),
    sa.Column("first_hash", Id, comment="Conflict: content hash of what was accepted first."),
    sa.Column("second_hash", Id, comment="Conflict: content hash of this one."),
    sa.Column("batch_id", sa.BigInteger, nullable=False, comment="The batch that set it aside first."),
    sa.Column(
        "position",
        sa.BigInteger,
        comment="Offset in the log of the message that brought it first; the batch's feed names the partition. Null over HTTP.",
    ),
    sa.Column("sent_tenant_id", sa.Text, comment="The tenant that the bytes name, where they can be read."),
    sa.Column("source", sa.Text, comment="The sender that the bytes name, where they can be read."),
    sa.Column("event_id", sa.Text, comment="The id that the bytes name, where they can be read."),
    sa.Column(
        "sequence", sa.BigInteger, comment="The sender's own counter, where it can be read: set aside, not lost."
    ),
    sa.Column("first_at", Instant, nullable=False, comment="When it was first set aside."),
    sa.Column("last_at", Instant, nullable=False, comment="When it last came again."),
    sa.Column("repeats", sa.BigInteger, nullable=False, server_default="0", comment="How often it came again."),
    sa.Column("owner", sa.Text, comment="Who looks after it."),
    sa.Column("note", sa.Text, comment="What they found."),
    sa.Column("resolved_at", Instant, comment="When somebody was done with it; null while open."),
    sa.Column(
        "resolution",
        sa.Text,
        comment="created, duplicate, evidence: what a replay made of it; split: its events were posted or set aside one by"
        " one; accepted: a conflict that a correction took over; dismissed: nothing was to be done.",
    ),
    sa.Column("resolved_batch_id", sa.BigInteger, comment="The batch that posted it; null where it was dismissed."),
    sa.Column("resolved_by", sa.Text, comment="Who."),
    one_of("resolution", "created", "duplicate", "evidence", "split", "accepted", "dismissed"),
    sa.CheckConstraint("resolution is null or resolved_at is not null", name="resolution_has_its_time"),
    # Serves the count of repeats: the same bytes from the same origin are one letter.
    sa.UniqueConstraint("origin", "bytes_hash"),
    # Serves the list of open letters and their counts by reason, age and owner, however many are resolved.
    sa.Index("ix_dead_letters_open", "dead_letter_id", postgresql_where=sa.text("resolved_at is null")),
    # Serves the search for a missing sequence among what was set aside.
    sa.Index("ix_dead_letters_source_sequence", "source", "sequence", postgresql_where=sa.text("sequence is not null")),
    comment="What was acknowledged and could not be posted, with its bytes and the reason.",
)

sequence_marks = sa.Table(
    "sequence_marks",
    metadata,
    sa.Column("feed_id", sa.Integer, sa.ForeignKey("ledger.feeds.feed_id"), primary_key=True, comment="Which feed."),
    sa.Column("number", sa.BigInteger, nullable=False, comment="The last of its batches whose sequences were taken."),
    comment="How far the sequences of entries have been taken into ledger.sequence_runs, by feed.",
)

sequence_runs = sa.Table(
    "sequence_runs",
    metadata,
    sa.Column("source", sa.Text, primary_key=True, comment="Whose counter it is."),
    sa.Column(
        "run", sa.Integer, primary_key=True, comment="Counts its restarts: a counter that begins anew is another run."
    ),
    sa.Column("seen", INT8MULTIRANGE, nullable=False, comment="The numbers that came."),
    sa.Column(
        "repeats",
        sa.BigInteger,
        nullable=False,
        server_default="0",
        comment="Other events that came under a number of it.",
    ),
    sa.Column(
        "is_sparse",
        sa.Boolean,
        nullable=False,
        server_default=sa.false(),
        comment="So full of holes that it is no counter: nothing more is looked for.",
    ),
    sa.Column("first_at", Instant, nullable=False, comment="When its first number was recorded."),
    sa.Column("last_at", Instant, nullable=False, comment="When its newest number was recorded."),
    comment="One row per sender and run of its counter: a projection of entries, taken from new batches.",
)

sequence_gaps = sa.Table(
    "sequence_gaps",
    metadata,
    sa.Column("source", sa.Text, primary_key=True, comment="Whose counter it is."),
    sa.Column("run", sa.Integer, primary_key=True, comment="Which run of it."),
    sa.Column("low", sa.BigInteger, primary_key=True, comment="The first number that is missing."),
    sa.Column("high", sa.BigInteger, nullable=False, comment="The last number that is missing."),
    sa.Column(
        "noted_at", Instant, nullable=False, comment="When a number behind it was recorded: its age counts from here."
    ),
    sa.Column("accepted_at", Instant, comment="When a person said that it is known to be lost; null: nobody has."),
    sa.CheckConstraint("low <= high", name="holds_a_number"),
    sa.ForeignKeyConstraint(["source", "run"], ["ledger.sequence_runs.source", "ledger.sequence_runs.run"]),
    comment="One row per stretch of numbers that is missing between those that came; late arrivals take it away.",
)

proof_marks = sa.Table(
    "proof_marks",
    metadata,
    sa.Column("feed_id", sa.Integer, sa.ForeignKey("ledger.feeds.feed_id"), primary_key=True, comment="Which feed."),
    sa.Column("number", sa.BigInteger, nullable=False, comment="The last of its batches that was added."),
    comment="How far the entries have been added to ledger.proof_totals, by feed.",
)

proof_totals = sa.Table(
    "proof_totals",
    metadata,
    sa.Column("tenant_id", sa.Text, primary_key=True, comment="Who pays."),
    sa.Column("month", sa.Date, primary_key=True, comment="Month of the usage in the tenant's zone, its first day."),
    sa.Column("cost_currency", sa.Text, primary_key=True, comment="Empty where there is no cost."),
    sa.Column("charge_currency", sa.Text, primary_key=True, comment="Empty where there is no charge."),
    sa.Column("cost_amount", Amount, nullable=False, comment="What we owe providers, unrounded."),
    sa.Column("charge_amount", Amount, nullable=False, comment="What the tenant owes, unrounded."),
    sa.Column("request_count", sa.BigInteger, nullable=False, comment="Requests, each once."),
    sa.Column("input_tokens", sa.BigInteger, nullable=False, comment="Tokens in."),
    sa.Column("output_tokens", sa.BigInteger, nullable=False, comment="Tokens out."),
    sa.Column("moved_at", Instant, nullable=False, comment="When entries were last added, by the database's clock."),
    comment="One row per tenant, local month and currencies: the sums of all entries up to the marks, whose rows may be gone.",
)

proofs = sa.Table(
    "proofs",
    metadata,
    sa.Column("proof_id", sa.BigInteger, sa.Identity(), primary_key=True, comment="Order of proofs."),
    sa.Column(
        "kind",
        sa.Text,
        nullable=False,
        comment="standing: totals of budgets, ledger and marts against each other; whole: everything made again.",
    ),
    sa.Column("started_at", Instant, nullable=False, comment="From when on it looked."),
    sa.Column(
        "ended_at", Instant, nullable=False, server_default=now(), comment="When it was done, by the database's clock."
    ),
    sa.Column("every_seconds", sa.Numeric, comment="The pause that was set: silence is longer. Null by hand."),
    sa.Column("up_to", JSONB, nullable=False, comment="{feed: number of the last batch that it saw}."),
    sa.Column("difference_count", sa.Integer, nullable=False, comment="What does not hold; zero is the only good one."),
    sa.Column("differences", JSONB, nullable=False, comment="[{part, text}], the first of each part, in words."),
    sa.Column("notes", JSONB, nullable=False, comment="[text]: what could not be compared."),
    one_of("kind", "standing", "whole"),
    # Serves the last proof of a kind: checks, metrics, and whether the nightly one is due.
    sa.Index("ix_proofs_kind_proof_id", "kind", "proof_id"),
    comment="One row per proof and its result. Standing ones without a difference are kept for two days, all others for good.",
)

canary_beats = sa.Table(
    "canary_beats",
    metadata,
    sa.Column("beat_id", sa.BigInteger, sa.Identity(), primary_key=True, comment="Order of beats."),
    sa.Column("sent_at", Instant, nullable=False, server_default=now(), comment="When the event was made."),
    sa.Column("road", sa.Text, nullable=False, comment="http or kafka: how it was sent."),
    sa.Column(
        "every_seconds", sa.Numeric, nullable=False, comment="The pause between beats that was set: silence is longer."
    ),
    sa.Column(
        "event_id", sa.Text, nullable=False, comment="The id of the event, under the canary's tenant and source."
    ),
    sa.Column("entry_seconds", sa.Numeric, comment="From sending to the entry being visible; null where it never was."),
    sa.Column(
        "budget_seconds", sa.Numeric, comment="From sending to the budget having moved; null where it never did."
    ),
    sa.Column("failure", sa.Text, comment="What went wrong, in one line; null where nothing did."),
    one_of("road", "http", "kafka"),
    comment="One row per synthetic event that was sent over the real path, and how long it took; kept for 30 days.",
)

check_runs = sa.Table(
    "check_runs",
    metadata,
    sa.Column("run_id", sa.BigInteger, sa.Identity(), primary_key=True, comment="Order of runs."),
    sa.Column("kind", sa.Text, nullable=False, comment="schedule: it came round; command: somebody asked."),
    sa.Column("started_at", Instant, nullable=False, comment="When it began."),
    sa.Column(
        "ended_at", Instant, nullable=False, server_default=now(), comment="When it was done, by the database's clock."
    ),
    sa.Column("every_seconds", sa.Numeric, comment="The pause that was set: silence is longer. Null by hand."),
    sa.Column("window_starts_at", Instant, nullable=False, comment="What arrived from here on was looked at."),
    sa.Column("window_ends_at", Instant, nullable=False, comment="Exclusive end of it."),
    sa.Column("request_count", sa.BigInteger, nullable=False, comment="New requests in it."),
    sa.Column("passed_count", sa.Integer, nullable=False, comment="Results that hold."),
    sa.Column("warned_count", sa.Integer, nullable=False, comment="Results that do not hold and may be in order."),
    sa.Column("failed_count", sa.Integer, nullable=False, comment="Results for which somebody must act."),
    sa.Column("unknown_count", sa.Integer, nullable=False, comment="Results of too little, or of too little before."),
    sa.Column("broken_count", sa.Integer, nullable=False, comment="Checks that could not run themselves."),
    one_of("kind", "schedule", "command"),
    comment="One row per run of the checks on what arrived; kept for five weeks.",
)

check_results = sa.Table(
    "check_results",
    metadata,
    sa.Column(
        "run_id",
        sa.BigInteger,
        sa.ForeignKey("ledger.check_runs.run_id", ondelete="cascade"),
        primary_key=True,
        comment="Of which run.",
    ),
    sa.Column("expectation", sa.Text, primary_key=True, comment="Its name in tallystick/arrivals/expectations.yml."),
    sa.Column("kind", sa.Text, primary_key=True, comment="all, source, reason or dimension: what it is about."),
    sa.Column(
        "subject",
        sa.Text,
        primary_key=True,
        comment="The registered sender (a digest where its name holds a tenant's id), reason or dimension; empty for all.",
    ),
    sa.Column(
        "outcome",
        sa.Text,
        nullable=False,
        comment="passed, failed, unknown (too little to say) or broken (the check itself could not run).",
    ),
    sa.Column("severity", sa.Text, comment="Of what failed: warn, or fail where somebody must act."),
    sa.Column("unit", sa.Text, nullable=False, comment="share, ratio, count, seconds or hours."),
    sa.Column("observed", sa.Numeric, comment="The number; null where there is none."),
    sa.Column("sample_count", sa.BigInteger, comment="How much it was read from; null where that does not matter."),
    sa.Column("sample_min", sa.BigInteger, comment="Below it nothing is said."),
    sa.Column("least", sa.Numeric, comment="Below it the expectation does not hold; null without such a bound."),
    sa.Column("most", sa.Numeric, comment="Above it the expectation does not hold; null without such a bound."),
    sa.Column("meaning", sa.Text, nullable=False, comment="What the number says."),
    sa.Column("why", sa.Text, nullable=False, comment="Why it is looked at."),
    sa.Column("act", sa.Text, nullable=False, comment="What to do where it does not hold."),
    sa.Column("fault", sa.Text, comment="Why the check could not run; null where it did."),
    one_of("kind", "all", "source", "reason", "dimension"),
    one_of("outcome", "passed", "failed", "unknown", "broken"),
    one_of("severity", "warn", "fail"),
    sa.CheckConstraint("(outcome = 'failed') = (severity is not null)", name="severity_of_what_failed"),
    sa.CheckConstraint("(outcome = 'broken') = (fault is not null)", name="fault_of_what_is_broken"),
    comment="One row per expectation and what it is about, of a run: numbers alone, and no value of any tenant.",
)

node_windows = sa.Table(
    "node_windows",
    metadata,
    sa.Column("event_key", Id, primary_key=True, comment="Identity of the report."),
    sa.Column("tenant_id", sa.Text, nullable=False, comment="The platform tenant that the node belongs to, as sent."),
    sa.Column("source", sa.Text, nullable=False, comment="Who sent it."),
    sa.Column("node_id", sa.Text, nullable=False, comment="Which node it is about."),
    sa.Column("starts_at", Instant, nullable=False, comment="Inclusive, by the node's clock."),
    sa.Column("ends_at", Instant, nullable=False, comment="Exclusive."),
    sa.Column("body", JSONB, nullable=False, comment="What the node said, whole."),
    sa.Column("batch_id", sa.BigInteger, nullable=False, comment="The batch that brought it."),
    sa.CheckConstraint("ends_at > starts_at and ends_at <= starts_at + interval '24 hours'", name="is_at_most_a_day"),
    # Serves `post`, which looks for windows that a new one would overlap, and the allocation of a node's hour.
    sa.Index("ix_node_windows_node_id_starts_at", "node_id", "starts_at"),
    # Serves the rollup, which reads the windows of new batches, and the proof of their digests.
    sa.Index("ix_node_windows_batch_id", "batch_id"),
    comment="One row per report of a GPU node about itself over a span of time; those of one node never overlap.",
)

node_rates = sa.Table(
    "node_rates",
    metadata,
    sa.Column("node_rate_id", sa.BigInteger, sa.Identity(), primary_key=True, comment="Order of recording."),
    sa.Column(
        "content_hash",
        Id,
        nullable=False,
        unique=True,
        comment="Over what the rate is for, its price, its instant and what it replaces.",
    ),
    sa.Column("gpu_model", sa.Text, nullable=False, comment="As the windows of its nodes say it, exactly."),
    sa.Column("gpu_count", sa.Integer, nullable=False, comment="GPUs, or slices, of one node."),
    sa.Column("mig_profile", sa.Text, comment="Of nodes that are slices of a GPU; null for whole ones."),
    sa.Column("region", sa.Text, comment="Of nodes of this region only; null for any."),
    sa.Column("node_id", sa.Text, comment="Of this node only; null for any."),
    sa.Column(
        "hourly_price", sa.Numeric, nullable=False, comment="What the whole node costs for an hour, its power in it."
    ),
    sa.Column("currency", sa.CHAR(3), nullable=False, comment="ISO 4217 code."),
    sa.Column("effective_at", Instant, nullable=False, comment="In force from here until the next of its kind."),
    sa.Column(
        "recorded_at", Instant, nullable=False, server_default=sa.text("clock_timestamp()"), comment="Known since."
    ),
    sa.Column("source_address", sa.Text, nullable=False, comment="Where the price stands."),
    sa.Column("checked_on", sa.Date, nullable=False, comment="When somebody last held it against its source."),
    sa.Column("replaces", Id, comment="content_hash of the rate that this one restates: same nodes, same instant."),
    sa.CheckConstraint("hourly_price > 0", name="hourly_price_is_positive"),
    sa.CheckConstraint("gpu_count > 0", name="gpu_count_is_positive"),
    comment="What an hour of a GPU node costs. Immutable: a changed price is a new row.",
)

retirements = sa.Table(
    "retirements",
    metadata,
    sa.Column("retirement_id", sa.BigInteger, sa.Identity(), primary_key=True, comment="Order of steps."),
    sa.Column("posting_period", sa.Date, nullable=False, comment="The first day of the month."),
    sa.Column(
        "step",
        sa.Text,
        nullable=False,
        comment="export: written to files and read back; retire: its rows left the ledger; restore: they are readable again.",
    ),
    sa.Column(
        "rows_are",
        sa.Text,
        nullable=False,
        comment="attached, kept (a table of its own beside the ledger) or dropped, after the step.",
    ),
    sa.Column("row_count", sa.BigInteger, nullable=False, comment="Rows of the month, evidence included."),
    sa.Column("location", sa.Text, comment="Of an export: the folder, as named by whoever exported."),
    sa.Column("manifest", JSONB, comment="Of an export: files, counts, sums and hashes."),
    sa.Column("manifest_hash", BYTEA, comment="Of an export: SHA-256 of its manifest."),
    sa.Column("actor", sa.Text, nullable=False, comment="Who."),
    sa.Column("reason", sa.Text, comment="Why, in the actor's words."),
    sa.Column("at", Instant, nullable=False, server_default=now(), comment="When, by the database's clock."),
    one_of("step", "export", "retire", "restore"),
    one_of("rows_are", "attached", "kept", "dropped"),
    sa.CheckConstraint("extract(day from posting_period) = 1", name="is_a_month"),
    sa.CheckConstraint("(step = 'export') = (manifest_hash is not null)", name="export_has_a_manifest"),
    comment="One row per step that took a month's rows out of the ledger or brought them back. Rows are added, never changed.",
)

acts = sa.Table(
    "acts",
    metadata,
    sa.Column("act_id", sa.BigInteger, sa.Identity(), primary_key=True, comment="Order of acts."),
    sa.Column("at", Instant, nullable=False, server_default=now(), comment="When, by the database's clock."),
    sa.Column("actor", sa.Text, nullable=False, comment="Who."),
    sa.Column("act", sa.Text, nullable=False, comment="What, as noun.verb."),
    sa.Column("detail", JSONB, nullable=False, comment="With which values."),
    sa.Column("reason", sa.Text, comment="Why, in the actor's words."),
    sa.Column("second_person", sa.Text, comment="Who approved, where two are needed."),
    comment="Who changed what by command, and why.",
)

approvals = sa.Table(
    "approvals",
    metadata,
    sa.Column("approval_id", sa.BigInteger, sa.Identity(), primary_key=True, comment="What people name it by."),
    sa.Column("act", sa.Text, nullable=False, comment="What is to be done, as noun.verb."),
    sa.Column("detail", JSONB, nullable=False, comment="With which values: what the second person agrees to."),
    sa.Column("digest", Id, nullable=False, comment="Over act and detail: asking twice is one question."),
    sa.Column("reason", sa.Text, nullable=False, comment="Why, in the words of whoever asks."),
    sa.Column("requested_by", sa.Text, nullable=False, comment="Who asks, and will do it."),
    sa.Column("requested_at", Instant, nullable=False, server_default=now(), comment="When it was asked."),
    sa.Column("expires_at", Instant, nullable=False, comment="From here on a question, or a yes, counts no more."),
    sa.Column(
        "state",
        sa.Text,
        nullable=False,
        server_default="requested",
        comment="requested; approved: may be done, once; refused; used: was done; expired: was neither in time.",
    ),
    sa.Column("decided_by", sa.Text, comment="The second person; null until the answer."),
    sa.Column("decided_at", Instant, comment="When the answer was given."),
    sa.Column("decision_reason", sa.Text, comment="Why, in the words of the second person."),
    sa.Column("used_at", Instant, comment="When the act was done; null until then."),
    one_of("state", "requested", "approved", "refused", "used", "expired"),
    sa.CheckConstraint("decided_by <> requested_by", name="is_by_two_people"),
    sa.CheckConstraint(
        "state not in ('approved', 'refused', 'used') or decided_by is not null", name="answer_has_its_person"
    ),
    # Serves the look-up by whoever acts, and keeps one open question for each act and detail.
    sa.Index(
        "uq_approvals_digest",
        "digest",
        unique=True,
        postgresql_where=sa.text("state in ('requested', 'approved')"),
    ),
    comment="Acts that need a second person: who asked, who answered, and whether it was done.",
)

corrections = sa.Table(
    "corrections",
    metadata,
    sa.Column("correction_no", sa.BigInteger, sa.Identity(), primary_key=True, comment="What people name it by."),
    sa.Column("correction_id", sa.Text, nullable=False, comment="The caller's own, or made of what was asked for."),
    sa.Column(
        "event_key", Id, nullable=False, unique=True, comment="Over sent_tenant_id and correction_id; its rows hold it."
    ),
    sa.Column(
        "kind",
        sa.Text,
        nullable=False,
        comment="reverse: negates all that stood; adjust: other counts, or a difference in money; accept: a report that was kept, or the second content of a conflict, counts; refuse: a proposal does not.",
    ),
    sa.Column("tenant_id", sa.Text, nullable=False, comment="Who pays."),
    sa.Column("sent_tenant_id", sa.Text, nullable=False, comment="The tenant as sent."),
    sa.Column("request_id", sa.Text, comment="The request; null for a fee."),
    sa.Column("request_key", Id, comment="Of the request or fee; null where a report claims none."),
    sa.Column("detail", JSONB, nullable=False, comment="What was asked for, with its values."),
    sa.Column(
        "effects", JSONB, nullable=False, comment="What it moved: [{what, currency, before, after}], decimal text."
    ),
    sa.Column("entry_count", sa.Integer, nullable=False, comment="Rows that it wrote to ledger.entries."),
    sa.Column("batch_id", sa.BigInteger, comment="The batch that posted it; null for a refusal, which posts nothing."),
    sa.Column("evidence_entry_id", sa.BigInteger, comment="The first row of the report that was decided on."),
    sa.Column("dead_letter_id", sa.BigInteger, comment="The conflict that was decided on."),
    sa.Column("at", Instant, nullable=False, server_default=now(), comment="When, by the database's clock."),
    sa.Column("actor", sa.Text, nullable=False, comment="Who."),
    sa.Column("reason", sa.Text, nullable=False, comment="Why, in the actor's words."),
    sa.Column("second_person", sa.Text, comment="Who agreed, where two are needed."),
    one_of("kind", "reverse", "adjust", "accept", "refuse"),
    # Serves the list of a tenant.
    sa.Index("ix_corrections_tenant_id_correction_no", "tenant_id", "correction_no"),
    # Serves the list of open proposals, and keeps one decision on each.
    sa.Index(
        "uq_corrections_evidence_entry_id",
        "evidence_entry_id",
        unique=True,
        postgresql_where=sa.text("evidence_entry_id is not null"),
    ),
    sa.Index(
        "uq_corrections_dead_letter_id",
        "dead_letter_id",
        unique=True,
        postgresql_where=sa.text("dead_letter_id is not null"),
    ),
    comment="One row per correction by a person, written in the transaction that posts its entries.",
)

differences = sa.Table(
    "differences",
    metadata,
    sa.Column("difference_no", sa.BigInteger, sa.Identity(), primary_key=True, comment="Order of noting."),
    sa.Column("tenant_id", sa.Text, nullable=False, comment="Who pays."),
    sa.Column("request_id", sa.Text, comment="The request that both speak of."),
    sa.Column("request_key", Id, nullable=False, comment="Its key."),
    sa.Column("occurred_at", Instant, nullable=False, comment="When the call ended, by the first report."),
    sa.Column("recorded_at", Instant, nullable=False, comment="When the later report was written."),
    sa.Column("batch_id", sa.BigInteger, nullable=False, comment="The batch of the later report."),
    sa.Column("entry_id", sa.BigInteger, nullable=False, comment="First row of the later report."),
    sa.Column("is_counted", sa.Boolean, nullable=False, comment="Whether the later report counts from then on."),
    sa.Column("stood_source", sa.Text, nullable=False, comment="Who said what stood before."),
    sa.Column("said_source", sa.Text, nullable=False, comment="Who said otherwise."),
    sa.Column("stood_quantities", JSONB, nullable=False, comment="What stood: {meter: count}."),
    sa.Column("said_quantities", JSONB, nullable=False, comment="What the later report said: {meter: count}."),
    sa.Column("stood_charge", Amount, comment="Charge that stood; null while unpriced."),
    sa.Column("said_charge", Amount, comment="Charge by the later report; null while unpriced."),
    sa.Column("charge_currency", sa.CHAR(3), comment="The tenant's, ISO 4217."),
    sa.Column("stood_cost", Amount, comment="Cost that stood; null while unpriced."),
    sa.Column("said_cost", Amount, comment="Cost by the later report; null while unpriced."),
    sa.Column("cost_currency", sa.CHAR(3), comment="ISO 4217; null while nobody knows it."),
    # Serve the report: of all tenants, and of one.
    sa.Index("ix_differences_recorded_at", "recorded_at"),
    sa.Index("ix_differences_tenant_id_recorded_at", "tenant_id", "recorded_at"),
    comment="One row per final report of another source that said other counts or amounts of a request than what stood.",
)

loads = sa.Table(
    "loads",
    metadata,
    sa.Column("load_id", sa.Text, primary_key=True, comment="Chosen by whoever makes it."),
    sa.Column(
        "source",
        sa.Text,
        sa.ForeignKey("ledger.sources.source"),
        nullable=False,
        comment="load:<id>, the source of all its events: who it speaks for and its rank stand there.",
    ),
    sa.Column(
        "state",
        sa.Text,
        nullable=False,
        server_default="created",
        comment="created; loaded: rows are staged; committing, reverting: begun, and to be gone on with; committed; reverted.",
    ),
    sa.Column(
        "actor", sa.Text, nullable=False, comment="Who made it; ledger.acts has who loaded, committed, reverted."
    ),
    sa.Column("reason", sa.Text, nullable=False, comment="Why, in the actor's words."),
    sa.Column(
        "files",
        JSONB,
        nullable=False,
        server_default=sa.text("'[]'::jsonb"),
        comment="In the order in which they were loaded: name, sha256, bytes, rows, refused, mapping.",
    ),
    sa.Column("row_count", sa.BigInteger, nullable=False, server_default="0", comment="Staged rows, refused ones too."),
    sa.Column(
        "refused_count", sa.BigInteger, nullable=False, server_default="0", comment="Staged rows in state refused."
    ),
    sa.Column(
        "without_refused",
        sa.Boolean,
        nullable=False,
        server_default=sa.false(),
        comment="It was committed although rows were refused; they are dead letters.",
    ),
    sa.Column("preview", JSONB, comment="What the newest preview said; null while none has been made of these rows."),
    sa.Column("created_at", Instant, nullable=False, server_default=now(), comment="When it was made."),
    sa.Column("loaded_at", Instant, comment="When its newest file was staged: the receipt of its events."),
    sa.Column("previewed_at", Instant, comment="When the newest preview was made."),
    sa.Column("commit_started_at", Instant, comment="When its first batch was to be posted."),
    sa.Column("committed_at", Instant, comment="When its last batch was posted."),
    sa.Column("revert_started_at", Instant, comment="When taking it back began."),
    sa.Column("reverted_at", Instant, comment="When all of it was taken back."),
    one_of("state", "created", "loaded", "committing", "committed", "reverting", "reverted"),
    sa.CheckConstraint("source = 'load:' || load_id", name="source_names_the_load"),
    comment="One row per backfill: files of usage that are staged, previewed, committed and, if need be, reverted as one.",
)

load_rows = sa.Table(
    "load_rows",
    metadata,
    sa.Column("load_id", sa.Text, sa.ForeignKey("ledger.loads.load_id"), primary_key=True, comment="Whose row it is."),
    sa.Column("position", sa.BigInteger, primary_key=True, comment="From 0, in the order of files and rows."),
    sa.Column("file_no", sa.Integer, nullable=False, comment="Place of its file in loads.files, from 0."),
    sa.Column("row_no", sa.BigInteger, nullable=False, comment="From 1, the header of a table not counted."),
    sa.Column(
        "body", BYTEA, nullable=False, comment="The event as it is posted; of a refused row, the row as it was read."
    ),
    sa.Column("reason", sa.Text, comment="Why the row is refused, a stable code; null where it is an event."),
    sa.Column("detail", sa.Text, comment="File, row, field and rule of a refusal, for a person."),
    sa.Column("event_key", Id, comment="Identity of the event; null where the row is refused."),
    sa.Column("content_hash", Id, comment="Tells a copy inside the load from another row under the same id."),
    sa.Column("request_key", Id, comment="Identity of the request that it is about."),
    sa.Column(
        "outcome",
        sa.Text,
        comment="Where the newest preview says other than created: duplicate, evidence, conflict or dead_letter.",
    ),
    sa.Column("outcome_reason", sa.Text, comment="Why, as the preview gave it."),
    sa.CheckConstraint("(reason is null) = (event_key is not null)", name="is_an_event_or_refused"),
    comment="One row per row of a load's files.",
)

reader_tenants = sa.Table(
    "reader_tenants",
    metadata,
    sa.Column("login", sa.Text, primary_key=True, comment="A login of the group tallystick_reader."),
    sa.Column(
        "tenant_id",
        sa.Text,
        sa.ForeignKey("ledger.tenants.tenant_id"),
        primary_key=True,
        comment="A tenant whose rows it may see.",
    ),
    comment="The tenants that a login of the group tallystick_reader may see.",
)

routines = sa.Table(
    "routines",
    metadata,
    sa.Column("name", sa.Text, primary_key=True, comment="Of the file."),
    sa.Column("sha256", sa.Text, nullable=False, comment="Of its text as it was applied."),
    comment="Which text of each sql/ file was last applied, so that a migration touches only what changed.",
)
