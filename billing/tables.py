"""The tables of the schema `billing`. What they promise stands in this room's page; guards, views and grants in sql/."""

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from ledger.tables import NAMING, Amount, Instant, now, one_of

metadata = sa.MetaData(schema="billing", naming_convention=NAMING)

KINDS: Final = ("invoice", "credit_note")
BASES: Final = ("period", "usage", "commercial", "owed_back")
LINE_KINDS: Final = ("usage", "fee", "minimum", "discount", "owed_back", "credit")
ITEM_KINDS: Final = ("fee", "minimum", "discount")


def _version_id() -> sa.Column[int]:
    return sa.Column(
        "version_id",
        sa.BigInteger,
        sa.Identity(),
        primary_key=True,
        comment="Order of recording: the later one counts.",
    )


def _recorded() -> tuple[sa.Column[Any], sa.Column[Any]]:
    return (
        sa.Column("actor", sa.Text, nullable=False, comment="Who wrote it down."),
        sa.Column(
            "recorded_at", Instant, nullable=False, server_default=now(), comment="When, by the database's clock."
        ),
    )


# --- Who issues, who pays, what is agreed -----------------------------------------------------------------------------

issuers = sa.Table(
    "issuers",
    metadata,
    _version_id(),
    sa.Column("entity_id", sa.Text, nullable=False, comment="The entity of ledger.entities."),
    sa.Column("effective_from", sa.Date, nullable=False, comment="From this day on, until the next."),
    sa.Column("name", sa.Text, nullable=False, comment="Legal name, as printed."),
    sa.Column("address", ARRAY(sa.Text), nullable=False, comment="Lines of the address, as printed."),
    sa.Column("country", sa.CHAR(2), nullable=False, comment="ISO 3166-1 alpha-2."),
    sa.Column("tax_id", sa.Text, comment="As printed; null where it has none."),
    sa.Column("email", sa.Text, comment="Whom to ask; null: nobody is named."),
    sa.Column("invoice_prefix", sa.Text, nullable=False, comment="In front of the number of an invoice."),
    sa.Column("credit_note_prefix", sa.Text, nullable=False, comment="In front of the number of a credit note."),
    sa.Column("payment_days", sa.Integer, nullable=False, comment="Days from issue until an invoice is due."),
    *_recorded(),
    sa.CheckConstraint("invoice_prefix <> credit_note_prefix", name="prefixes_differ"),
    sa.CheckConstraint("payment_days between 0 and 365", name="payment_days_are_possible"),
    # Serves who issues as of a day.
    sa.Index("ix_issuers_entity_id_effective_from", "entity_id", "effective_from"),
    comment="One row per entity and change of how it stands on documents: in force from a day until the next row's.",
)

customers = sa.Table(
    "customers",
    metadata,
    _version_id(),
    sa.Column("tenant_id", sa.Text, nullable=False, comment="Who pays."),
    sa.Column("effective_from", sa.Date, nullable=False, comment="From this day on, until the next."),
    sa.Column("name", sa.Text, nullable=False, comment="Legal name, as printed."),
    sa.Column("address", ARRAY(sa.Text), nullable=False, comment="Lines of the address, as printed."),
    sa.Column("country", sa.CHAR(2), nullable=False, comment="ISO 3166-1 alpha-2."),
    sa.Column("tax_id", sa.Text, comment="As printed; null where it has none."),
    sa.Column("email", sa.Text, comment="Where documents go; null: nobody is named."),
    sa.Column("tax_category", sa.Text, nullable=False, comment="Of its usage: picks the rate in tax_rates."),
    sa.Column("language", sa.Text, nullable=False, comment="BCP 47 tag of the printed words."),
    sa.Column(
        "invoice_currency",
        sa.CHAR(3),
        comment="One invoice in this currency, other ones converted by the dated rate; null: one invoice per currency.",
    ),
    *_recorded(),
    # Serves who pays as of a day.
    sa.Index("ix_customers_tenant_id_effective_from", "tenant_id", "effective_from"),
    comment="One row per tenant and change of how it stands on documents: in force from a day until the next row's.",
)

tax_rates = sa.Table(
    "tax_rates",
    metadata,
    _version_id(),
    sa.Column("entity_id", sa.Text, nullable=False, comment="Who charges it."),
    sa.Column("category", sa.Text, nullable=False, comment="Such as standard, exempt, reverse-charge."),
    sa.Column("effective_from", sa.Date, nullable=False, comment="From this day on, until the next."),
    sa.Column("rate", Amount, nullable=False, comment="Share of the base: 0.2 is twenty percent."),
    sa.Column("label", sa.Text, nullable=False, comment="As printed, such as VAT 20 %."),
    *_recorded(),
    sa.CheckConstraint("rate >= 0 and rate < 1", name="rate_is_a_share"),
    # Serves the rates of an entity as of a day.
    sa.Index("ix_tax_rates_entity_id_category", "entity_id", "category", "effective_from"),
    comment="One row per entity, category and change of the rate: in force from a day until the next row's.",
)

items = sa.Table(
    "items",
    metadata,
    _version_id(),
    sa.Column("item_id", sa.Text, nullable=False, comment="Its name; of several rows the last one counts."),
    sa.Column("tenant_id", sa.Text, nullable=False, comment="Who agreed to it."),
    sa.Column(
        "kind",
        sa.Text,
        nullable=False,
        comment="fee: an amount per period; minimum: what a month comes to at least; discount: what is taken off.",
    ),
    sa.Column("description", sa.Text, nullable=False, comment="As printed."),
    sa.Column("currency", sa.CHAR(3), comment="Of the amount, ISO 4217; null for a discount in percent."),
    sa.Column("amount", Amount, comment="Per period of a fee, per month otherwise; null for a discount in percent."),
    sa.Column("percent", Amount, comment="Of a discount: 10 takes off a tenth; null where it is an amount."),
    sa.Column("period", sa.Text, comment="Of a fee: month, quarter or year of the calendar."),
    sa.Column(
        "timing",
        sa.Text,
        comment="Of a fee: advance, on the invoice of the month that its period begins in; arrears, of the one that it ends in.",
    ),
    sa.Column("feature", sa.Text, comment="Minimum and discount: only usage of this feature; null: any."),
    sa.Column("model", sa.Text, comment="Minimum and discount: only usage of this model; null: any."),
    sa.Column("tax_category", sa.Text, comment="Of a fee; null: the customer's."),
    sa.Column("starts_on", sa.Date, nullable=False, comment="The first day it counts for, in the tenant's calendar."),
    sa.Column("ends_on", sa.Date, comment="Exclusive; null: it goes on."),
    *_recorded(),
    one_of("kind", *ITEM_KINDS),
    one_of("period", "month", "quarter", "year"),
    one_of("timing", "advance", "arrears"),
    sa.CheckConstraint("(kind = 'fee') = (period is not null)", name="fee_has_its_period"),
    sa.CheckConstraint("(kind = 'fee') = (timing is not null)", name="fee_has_its_timing"),
    sa.CheckConstraint("num_nonnulls(amount, percent) = 1", name="is_an_amount_or_percent"),
    sa.CheckConstraint("(amount is null) = (currency is null)", name="amount_has_its_currency"),
    sa.CheckConstraint("percent is null or kind = 'discount'", name="percent_is_a_discount"),
    sa.CheckConstraint("amount > 0", name="amount_is_positive"),
    sa.CheckConstraint("percent > 0 and percent <= 100", name="percent_is_possible"),
    sa.CheckConstraint("ends_on >= starts_on", name="ends_after_it_starts"),
    sa.CheckConstraint(
        "kind = 'fee' or (extract(day from starts_on) = 1 and coalesce(extract(day from ends_on), 1) = 1)",
        name="counts_for_whole_months",
    ),
    # Serves the items of some tenants.
    sa.Index("ix_items_tenant_id", "tenant_id"),
    # Serves the last word about an item.
    sa.Index("ix_items_item_id", "item_id", "version_id"),
    comment="One row per agreed item and change of it: what is billed besides usage.",
)

bounds = sa.Table(
    "bounds",
    metadata,
    _version_id(),
    sa.Column("currency", sa.CHAR(3), nullable=False, comment="Of the invoices that it holds for, ISO 4217."),
    sa.Column("total_max", Amount, comment="The largest total that is issued unseen; null: any."),
    sa.Column(
        "change_max", Amount, comment="How many times the last month's total is issued unseen, up or down; null: any."
    ),
    sa.Column(
        "change_from", Amount, nullable=False, comment="Months that both come to less than this are not compared."
    ),
    sa.Column("lines_max", sa.Integer, comment="How many lines are issued unseen; null: any."),
    *_recorded(),
    sa.CheckConstraint("total_max >= 0", name="total_max_is_not_negative"),
    sa.CheckConstraint("change_max >= 1", name="change_max_is_at_least_one"),
    sa.CheckConstraint("lines_max > 0", name="lines_max_is_positive"),
    comment="One row per currency and change: beyond these an invoice waits for a person; the last row of a currency counts.",
)

# --- Documents --------------------------------------------------------------------------------------------------------

numbers = sa.Table(
    "numbers",
    metadata,
    sa.Column("entity_id", sa.Text, primary_key=True, comment="Whose numbers."),
    sa.Column("kind", sa.Text, primary_key=True, comment="invoice or credit_note."),
    sa.Column(
        "last_value", sa.BigInteger, nullable=False, comment="The last one given; moves in the transaction that issues."
    ),
    one_of("kind", *KINDS),
    comment="One row per entity and kind of document: its lock is what keeps numbers gapless.",
)

documents = sa.Table(
    "documents",
    metadata,
    sa.Column("document_id", sa.Text, primary_key=True, comment="inv_... or cn_..."),
    sa.Column("kind", sa.Text, nullable=False, comment="invoice or credit_note."),
    sa.Column(
        "basis",
        sa.Text,
        nullable=False,
        comment="period: an invoice; usage: made of reversals; commercial: without entries; owed_back: the rest of a month that owes back.",
    ),
    sa.Column("entity_id", sa.Text, nullable=False, comment="Who issues it."),
    sa.Column("number_value", sa.BigInteger, nullable=False, comment="From 1, without a gap, by entity and kind."),
    sa.Column("number", sa.Text, nullable=False, comment="As printed: the prefix of its day and the value."),
    sa.Column("tenant_id", sa.Text, nullable=False, comment="Who pays."),
    sa.Column("posting_period", sa.Date, nullable=False, comment="The month; of a credit note, that of the invoice."),
    sa.Column("currency", sa.CHAR(3), nullable=False, comment="Of all its amounts, ISO 4217."),
    sa.Column(
        "revision",
        sa.SmallInteger,
        comment="Of an invoice: 1, and one more after each void of the same tenant, month and currency; null on a credit note.",
    ),
    sa.Column(
        "previous_revision", sa.SmallInteger, comment="The one before, which must be voided; null for the first."
    ),
    sa.Column("close_number", sa.Integer, comment="Of an invoice: the close whose seal it agrees with."),
    sa.Column("period_start", sa.Date, nullable=False, comment="The first day of the month."),
    sa.Column("period_end", sa.Date, nullable=False, comment="Exclusive."),
    sa.Column("time_zone", sa.Text, nullable=False, comment="In which the tenant's days begin."),
    sa.Column("language", sa.Text, nullable=False, comment="BCP 47 tag of the printed words."),
    sa.Column("issuer", JSONB, nullable=False, comment="Who issues, as printed: a copy."),
    sa.Column("customer", JSONB, nullable=False, comment="Who pays, as printed: a copy."),
    sa.Column("exact_subtotal", Amount, nullable=False, comment="Of its lines, unrounded."),
    sa.Column("subtotal", Amount, nullable=False, comment="Of its lines, as printed."),
    sa.Column("tax_total", Amount, nullable=False, comment="On the rounded subtotals."),
    sa.Column("total", Amount, nullable=False, comment="subtotal + tax_total."),
    sa.Column(
        "credit_total", Amount, nullable=False, comment="Paid from grants; of a credit note: given back to them."
    ),
    sa.Column("amount_due", Amount, nullable=False, comment="total - credit_total: in money."),
    sa.Column("due_date", sa.Date, comment="Of an invoice."),
    sa.Column(
        "digest", sa.Text, nullable=False, comment="SHA-256, hex, of all that is printed but number, time and due date."
    ),
    sa.Column("corrects_document_id", sa.Text, comment="Of a credit note: the invoice."),
    sa.Column("issued_with_document_id", sa.Text, comment="Of what a month owes back: the invoice of that month."),
    sa.Column("reason", sa.Text, comment="Of a credit note: why, as printed."),
    sa.Column("notes", ARRAY(sa.Text), nullable=False, server_default="{}", comment="Sentences, as printed."),
    sa.Column("actor", sa.Text, nullable=False, comment="Who issued it."),
    sa.Column("second_person", sa.Text, comment="Who agreed; null where nobody had to."),
    sa.Column("issued_at", Instant, nullable=False, comment="By the database's clock."),
    sa.Column(
        "written_in",
        sa.BigInteger,
        nullable=False,
        server_default=sa.text("pg_current_xact_id()::text::bigint"),
        comment="The transaction that issued it: no other one adds lines to it.",
    ),
    one_of("kind", *KINDS),
    one_of("basis", *BASES),
    sa.CheckConstraint("(kind = 'invoice') = (basis = 'period')", name="basis_fits_its_kind"),
    sa.CheckConstraint("(kind = 'invoice') = (revision is not null)", name="invoice_has_a_revision"),
    sa.CheckConstraint("(kind = 'invoice') = (close_number is not null)", name="invoice_has_its_close"),
    sa.CheckConstraint("(kind = 'invoice') = (due_date is not null)", name="invoice_is_due"),
    sa.CheckConstraint("(kind = 'credit_note') = (corrects_document_id is not null)", name="credit_note_corrects"),
    sa.CheckConstraint("(kind = 'credit_note') = (reason is not null)", name="credit_note_has_a_reason"),
    sa.CheckConstraint("(basis = 'owed_back') = (issued_with_document_id is not null)", name="owed_back_has_its_month"),
    sa.CheckConstraint("previous_revision is not distinct from nullif(revision - 1, 0)", name="revisions_follow"),
    sa.CheckConstraint("number_value > 0", name="numbers_begin_at_one"),
    sa.CheckConstraint("extract(day from posting_period) = 1", name="is_a_month"),
    sa.CheckConstraint("least(subtotal, tax_total, total, amount_due, credit_total) >= 0", name="is_not_below_zero"),
    sa.CheckConstraint("total = subtotal + tax_total and amount_due = total - credit_total", name="adds_up"),
    sa.UniqueConstraint("entity_id", "kind", "number_value"),
    sa.UniqueConstraint("entity_id", "number"),
    # With the foreign key below: at most one live invoice of a tenant, month and currency.
    sa.UniqueConstraint("tenant_id", "posting_period", "currency", "revision", name="uq_documents_pair"),
    # What a void copies is of the document that it voids.
    sa.UniqueConstraint(
        "document_id", "tenant_id", "posting_period", "currency", "revision", name="uq_documents_whole"
    ),
    sa.ForeignKeyConstraint(
        ["tenant_id", "posting_period", "currency", "previous_revision"],
        [f"billing.voids.{name}" for name in ("tenant_id", "posting_period", "currency", "revision")],
        name="fk_documents_previous_is_voided",
        use_alter=True,
    ),
    sa.ForeignKeyConstraint(["corrects_document_id"], ["billing.documents.document_id"], name="fk_documents_corrects"),
    sa.ForeignKeyConstraint(
        ["issued_with_document_id"], ["billing.documents.document_id"], name="fk_documents_issued_with"
    ),
    # Serves the credit notes of an invoice.
    sa.Index(
        "ix_documents_corrects", "corrects_document_id", postgresql_where=sa.text("corrects_document_id is not null")
    ),
    # Serves what was issued together with an invoice.
    sa.Index(
        "ix_documents_issued_with",
        "issued_with_document_id",
        postgresql_where=sa.text("issued_with_document_id is not null"),
    ),
    # Serves the list of a month.
    sa.Index("ix_documents_posting_period", "posting_period", "tenant_id"),
    comment="One row per issued invoice or credit note, as it was printed. Rows are added, never changed; a void is a row of its own.",
)

document_lines = sa.Table(
    "document_lines",
    metadata,
    # No foreign key: `billing.refuse_addition` looks the documents of a statement up at once.
    sa.Column("document_id", sa.Text, primary_key=True, comment="Whose line."),
    sa.Column("line_no", sa.Integer, primary_key=True, comment="Its place, from 1."),
    sa.Column(
        "kind",
        sa.Text,
        nullable=False,
        comment="usage: the fold of entries; fee, minimum, discount: agreed; owed_back: what a credit note gives back; credit: on a credit note.",
    ),
    sa.Column("description", sa.Text, nullable=False, comment="As printed."),
    sa.Column("service_start", sa.Date, nullable=False, comment="The first day that it is for."),
    sa.Column("service_end", sa.Date, nullable=False, comment="Exclusive."),
    sa.Column("feature", sa.Text, comment="What it was for; null where there is none."),
    sa.Column("provider", sa.Text, comment="Who served it; null where nobody did."),
    sa.Column("model", sa.Text, comment="The canonical id; null where there is none."),
    sa.Column("meter", sa.Text, comment="What was counted; null where it is no usage."),
    sa.Column("quantity", Amount, comment="In the meter's unit; null where the line is an amount."),
    sa.Column("unit_price", Amount, comment="For `per` units, unrounded; null where its entries have several."),
    sa.Column("per", sa.BigInteger, comment="Units that the price is for."),
    sa.Column("exact_amount", Amount, nullable=False, comment="Unrounded, in the document's currency."),
    sa.Column(
        "amount", Amount, nullable=False, comment="As printed; the lines of a tax category add up to its rounded sum."
    ),
    sa.Column("tax_category", sa.Text, nullable=False, comment="Under which it is taxed."),
    sa.Column("item_id", sa.Text, comment="The agreed item that it comes from."),
    sa.Column("charged_amount", Amount, comment="Of usage: as posted in the ledger, in charged_currency."),
    sa.Column("charged_currency", sa.CHAR(3), comment="Of charged_amount, ISO 4217."),
    sa.Column(
        "exchange_rate", Amount, comment="What one of charged_currency is in the document's; null: the same currency."
    ),
    sa.Column("exchange_rate_at", Instant, comment="Since when that rate is in force."),
    sa.Column("corrects_line_no", sa.Integer, comment="Of a credit note: the line of the invoice that it gives back."),
    one_of("kind", *LINE_KINDS),
    sa.CheckConstraint("service_start < service_end", name="service_has_a_length"),
    sa.CheckConstraint("(charged_amount is null) = (charged_currency is null)", name="charge_has_its_currency"),
    sa.CheckConstraint("(exchange_rate is null) = (exchange_rate_at is null)", name="rate_has_its_time"),
    sa.CheckConstraint("num_nonnulls(unit_price, per) <> 1", name="price_has_its_per"),
    comment="One row per line of a document.",
)

document_taxes = sa.Table(
    "document_taxes",
    metadata,
    sa.Column(
        "document_id", sa.Text, sa.ForeignKey("billing.documents.document_id"), primary_key=True, comment="Whose tax."
    ),
    sa.Column("category", sa.Text, primary_key=True, comment="Of the lines that it is on."),
    sa.Column("label", sa.Text, nullable=False, comment="As printed."),
    sa.Column("rate", Amount, nullable=False, comment="Share of the base."),
    sa.Column("exact_base", Amount, nullable=False, comment="Of its lines, unrounded."),
    sa.Column("base", Amount, nullable=False, comment="The rounded sum of its lines."),
    sa.Column("amount", Amount, nullable=False, comment="Of the tax, rounded."),
    comment="One row per document and tax category.",
)

document_credits = sa.Table(
    "document_credits",
    metadata,
    sa.Column(
        "document_id",
        sa.Text,
        sa.ForeignKey("billing.documents.document_id"),
        primary_key=True,
        comment="Whose credit.",
    ),
    sa.Column("place", sa.Integer, primary_key=True, comment="In the order in which grants burn, from 1."),
    sa.Column("grant_id", sa.Text, nullable=False, comment="The grant that pays; on a credit note, that gets it back."),
    sa.Column("description", sa.Text, nullable=False, comment="As printed."),
    sa.Column("amount", Amount, nullable=False, comment="Above zero."),
    sa.CheckConstraint("amount > 0", name="amount_is_positive"),
    comment="One row per document and grant that it burns or, a credit note, gives back to.",
)

voids = sa.Table(
    "voids",
    metadata,
    sa.Column("document_id", sa.Text, primary_key=True, comment="What no longer counts."),
    sa.Column("tenant_id", sa.Text, nullable=False, comment="As on the document."),
    sa.Column("posting_period", sa.Date, nullable=False, comment="As on the document."),
    sa.Column("currency", sa.CHAR(3), nullable=False, comment="As on the document."),
    sa.Column("revision", sa.SmallInteger, comment="As on the document: the next one may be issued."),
    sa.Column("reason", sa.Text, nullable=False, comment="Why."),
    sa.Column("actor", sa.Text, nullable=False, comment="Who."),
    sa.Column("second_person", sa.Text, comment="Who agreed; null where nobody had to."),
    sa.Column("voided_at", Instant, nullable=False, server_default=now(), comment="By the database's clock."),
    sa.ForeignKeyConstraint(["document_id"], ["billing.documents.document_id"], name="fk_voids_document"),
    sa.ForeignKeyConstraint(
        ["document_id", "tenant_id", "posting_period", "currency", "revision"],
        [
            f"billing.documents.{name}"
            for name in ("document_id", "tenant_id", "posting_period", "currency", "revision")
        ],
        name="fk_voids_whole",
    ),
    sa.UniqueConstraint("tenant_id", "posting_period", "currency", "revision", name="uq_voids_pair"),
    comment="One row per document that no longer counts. The document stays as it was.",
)

credited_entries = sa.Table(
    "credited_entries",
    metadata,
    sa.Column("posting_period", sa.Date, primary_key=True, comment="The month of the entry."),
    sa.Column("entry_id", sa.BigInteger, primary_key=True, comment="The entry, which stands on no invoice."),
    sa.Column("tenant_id", sa.Text, nullable=False, comment="Who pays."),
    sa.Column(
        "document_id",
        sa.Text,
        sa.ForeignKey("billing.documents.document_id"),
        nullable=False,
        comment="The credit note that it stands on.",
    ),
    # Serves what the entries of a tenant's month come to without those of credit notes.
    sa.Index("ix_credited_entries_tenant_id", "tenant_id", "posting_period"),
    comment="One row per entry that a credit note for usage is made of.",
)

parked = sa.Table(
    "parked",
    metadata,
    sa.Column("parked_id", sa.BigInteger, sa.Identity(), primary_key=True, comment="Order of refusals."),
    sa.Column("tenant_id", sa.Text, nullable=False, comment="Whose month."),
    sa.Column("posting_period", sa.Date, nullable=False, comment="The first day of the month."),
    sa.Column("currency", sa.CHAR(3), comment="Of the invoice; null where the whole month is refused."),
    sa.Column(
        "reasons",
        ARRAY(sa.Text),
        nullable=False,
        comment="What keeps it from being issued, a line each; none: nothing does any more.",
    ),
    sa.Column("actor", sa.Text, nullable=False, comment="Who tried."),
    sa.Column("parked_at", Instant, nullable=False, server_default=now(), comment="When, by the database's clock."),
    # Serves what waits of a month.
    sa.Index("ix_parked_posting_period", "posting_period", "tenant_id"),
    comment="One row per refusal to issue that says something new, and per end of one.",
)
