"""Add the schema of invoices: who issues and pays, what is agreed, documents, their numbers, voids, and what waits.

Why: a month is billed once, and what was issued must stay as it was. The schema itself is made by `migrate`, as those of the
other rooms are.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0026"
down_revision: str | None = "0025"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_INSTANT = postgresql.TIMESTAMP(timezone=True)


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.create_table(
        "bounds",
        sa.Column(
            "version_id",
            sa.BigInteger(),
            sa.Identity(),
            nullable=False,
            comment="Order of recording: the later one counts.",
        ),
        sa.Column(
            "currency", sa.CHAR(length=3), nullable=False, comment="Of the invoices that it holds for, ISO 4217."
        ),
        sa.Column(
            "total_max", sa.Numeric(), nullable=True, comment="The largest total that is issued unseen; null: any."
        ),
        sa.Column(
            "change_max",
            sa.Numeric(),
            nullable=True,
            comment="How many times the last month's total is issued unseen, up or down; null: any.",
        ),
        sa.Column(
            "change_from",
            sa.Numeric(),
            nullable=False,
            comment="Months that both come to less than this are not compared.",
        ),
        sa.Column("lines_max", sa.Integer(), nullable=True, comment="How many lines are issued unseen; null: any."),
        sa.Column("actor", sa.Text(), nullable=False, comment="Who wrote it down."),
        sa.Column(
            "recorded_at",
            _INSTANT,
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When, by the database's clock.",
        ),
        sa.CheckConstraint("change_max >= 1", name=op.f("ck_bounds_change_max_is_at_least_one")),
        sa.CheckConstraint("lines_max > 0", name=op.f("ck_bounds_lines_max_is_positive")),
        sa.CheckConstraint("total_max >= 0", name=op.f("ck_bounds_total_max_is_not_negative")),
        sa.PrimaryKeyConstraint("version_id", name=op.f("pk_bounds")),
        schema="billing",
        comment="One row per currency and change: beyond these an invoice waits for a person; the last row of a currency counts.",
    )
    op.create_table(
        "customers",
        sa.Column(
            "version_id",
            sa.BigInteger(),
            sa.Identity(),
            nullable=False,
            comment="Order of recording: the later one counts.",
        ),
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="Who pays."),
        sa.Column("effective_from", sa.Date(), nullable=False, comment="From this day on, until the next."),
        sa.Column("name", sa.Text(), nullable=False, comment="Legal name, as printed."),
        sa.Column("address", postgresql.ARRAY(sa.Text()), nullable=False, comment="Lines of the address, as printed."),
        sa.Column("country", sa.CHAR(length=2), nullable=False, comment="ISO 3166-1 alpha-2."),
        sa.Column("tax_id", sa.Text(), nullable=True, comment="As printed; null where it has none."),
        sa.Column("email", sa.Text(), nullable=True, comment="Where documents go; null: nobody is named."),
        sa.Column("tax_category", sa.Text(), nullable=False, comment="Of its usage: picks the rate in tax_rates."),
        sa.Column("language", sa.Text(), nullable=False, comment="BCP 47 tag of the printed words."),
        sa.Column(
            "invoice_currency",
            sa.CHAR(length=3),
            nullable=True,
            comment="One invoice in this currency, other ones converted by the dated rate; null: one invoice per currency.",
        ),
        sa.Column("actor", sa.Text(), nullable=False, comment="Who wrote it down."),
        sa.Column(
            "recorded_at",
            _INSTANT,
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When, by the database's clock.",
        ),
        sa.PrimaryKeyConstraint("version_id", name=op.f("pk_customers")),
        schema="billing",
        comment="One row per tenant and change of how it stands on documents: in force from a day until the next row's.",
    )
    op.create_index(
        "ix_customers_tenant_id_effective_from",
        "customers",
        ["tenant_id", "effective_from"],
        unique=False,
        schema="billing",
    )
    op.create_table(
        "documents",
        sa.Column("document_id", sa.Text(), nullable=False, comment="inv_... or cn_..."),
        sa.Column("kind", sa.Text(), nullable=False, comment="invoice or credit_note."),
        sa.Column(
            "basis",
            sa.Text(),
            nullable=False,
            comment="period: an invoice; usage: made of reversals; commercial: without entries; owed_back: the rest of a month that owes back.",
        ),
        sa.Column("entity_id", sa.Text(), nullable=False, comment="Who issues it."),
        sa.Column(
            "number_value", sa.BigInteger(), nullable=False, comment="From 1, without a gap, by entity and kind."
        ),
        sa.Column("number", sa.Text(), nullable=False, comment="As printed: the prefix of its day and the value."),
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="Who pays."),
        sa.Column(
            "posting_period", sa.Date(), nullable=False, comment="The month; of a credit note, that of the invoice."
        ),
        sa.Column("currency", sa.CHAR(length=3), nullable=False, comment="Of all its amounts, ISO 4217."),
        sa.Column(
            "revision",
            sa.SmallInteger(),
            nullable=True,
            comment="Of an invoice: 1, and one more after each void of the same tenant, month and currency; null on a credit note.",
        ),
        sa.Column(
            "previous_revision",
            sa.SmallInteger(),
            nullable=True,
            comment="The one before, which must be voided; null for the first.",
        ),
        sa.Column(
            "close_number", sa.Integer(), nullable=True, comment="Of an invoice: the close whose seal it agrees with."
        ),
        sa.Column("period_start", sa.Date(), nullable=False, comment="The first day of the month."),
        sa.Column("period_end", sa.Date(), nullable=False, comment="Exclusive."),
        sa.Column("time_zone", sa.Text(), nullable=False, comment="In which the tenant's days begin."),
        sa.Column("language", sa.Text(), nullable=False, comment="BCP 47 tag of the printed words."),
        sa.Column("issuer", postgresql.JSONB(), nullable=False, comment="Who issues, as printed: a copy."),
        sa.Column("customer", postgresql.JSONB(), nullable=False, comment="Who pays, as printed: a copy."),
        sa.Column("exact_subtotal", sa.Numeric(), nullable=False, comment="Of its lines, unrounded."),
        sa.Column("subtotal", sa.Numeric(), nullable=False, comment="Of its lines, as printed."),
        sa.Column("tax_total", sa.Numeric(), nullable=False, comment="On the rounded subtotals."),
        sa.Column("total", sa.Numeric(), nullable=False, comment="subtotal + tax_total."),
        sa.Column(
            "credit_total",
            sa.Numeric(),
            nullable=False,
            comment="Paid from grants; of a credit note: given back to them.",
        ),
        sa.Column("amount_due", sa.Numeric(), nullable=False, comment="total - credit_total: in money."),
        sa.Column("due_date", sa.Date(), nullable=True, comment="Of an invoice."),
        sa.Column(
            "digest",
            sa.Text(),
            nullable=False,
            comment="SHA-256, hex, of all that is printed but number, time and due date.",
        ),
        sa.Column("corrects_document_id", sa.Text(), nullable=True, comment="Of a credit note: the invoice."),
        sa.Column(
            "issued_with_document_id",
            sa.Text(),
            nullable=True,
            comment="Of what a month owes back: the invoice of that month.",
        ),
        sa.Column("reason", sa.Text(), nullable=True, comment="Of a credit note: why, as printed."),
        sa.Column(
            "notes", postgresql.ARRAY(sa.Text()), server_default="{}", nullable=False, comment="Sentences, as printed."
        ),
        sa.Column("actor", sa.Text(), nullable=False, comment="Who issued it."),
        sa.Column("second_person", sa.Text(), nullable=True, comment="Who agreed; null where nobody had to."),
        sa.Column("issued_at", _INSTANT, nullable=False, comment="By the database's clock."),
        sa.Column(
            "written_in",
            sa.BigInteger(),
            server_default=sa.text("pg_current_xact_id()::text::bigint"),
            nullable=False,
            comment="The transaction that issued it: no other one adds lines to it.",
        ),
        sa.CheckConstraint(
            "(basis = 'owed_back') = (issued_with_document_id is not null)",
            name=op.f("ck_documents_owed_back_has_its_month"),
        ),
        sa.CheckConstraint(
            "(kind = 'credit_note') = (corrects_document_id is not null)",
            name=op.f("ck_documents_credit_note_corrects"),
        ),
        sa.CheckConstraint(
            "(kind = 'credit_note') = (reason is not null)", name=op.f("ck_documents_credit_note_has_a_reason")
        ),
        sa.CheckConstraint("(kind = 'invoice') = (basis = 'period')", name=op.f("ck_documents_basis_fits_its_kind")),
        sa.CheckConstraint(
            "(kind = 'invoice') = (close_number is not null)", name=op.f("ck_documents_invoice_has_its_close")
        ),
        sa.CheckConstraint("(kind = 'invoice') = (due_date is not null)", name=op.f("ck_documents_invoice_is_due")),
        sa.CheckConstraint(
            "(kind = 'invoice') = (revision is not null)", name=op.f("ck_documents_invoice_has_a_revision")
        ),
        sa.CheckConstraint(
            "basis in ('period', 'usage', 'commercial', 'owed_back')", name=op.f("ck_documents_basis_is_known")
        ),
        sa.CheckConstraint("kind in ('invoice', 'credit_note')", name=op.f("ck_documents_kind_is_known")),
        sa.CheckConstraint("extract(day from posting_period) = 1", name=op.f("ck_documents_is_a_month")),
        sa.CheckConstraint(
            "least(subtotal, tax_total, total, amount_due, credit_total) >= 0",
            name=op.f("ck_documents_is_not_below_zero"),
        ),
        sa.CheckConstraint("number_value > 0", name=op.f("ck_documents_numbers_begin_at_one")),
        sa.CheckConstraint(
            "previous_revision is not distinct from nullif(revision - 1, 0)", name=op.f("ck_documents_revisions_follow")
        ),
        sa.CheckConstraint(
            "total = subtotal + tax_total and amount_due = total - credit_total", name=op.f("ck_documents_adds_up")
        ),
        sa.ForeignKeyConstraint(
            ["corrects_document_id"], ["billing.documents.document_id"], name="fk_documents_corrects"
        ),
        sa.ForeignKeyConstraint(
            ["issued_with_document_id"], ["billing.documents.document_id"], name="fk_documents_issued_with"
        ),
        sa.PrimaryKeyConstraint("document_id", name=op.f("pk_documents")),
        sa.UniqueConstraint(
            "document_id", "tenant_id", "posting_period", "currency", "revision", name="uq_documents_whole"
        ),
        sa.UniqueConstraint("entity_id", "kind", "number_value", name=op.f("uq_documents_entity_id_kind_number_value")),
        sa.UniqueConstraint("entity_id", "number", name=op.f("uq_documents_entity_id_number")),
        sa.UniqueConstraint("tenant_id", "posting_period", "currency", "revision", name="uq_documents_pair"),
        schema="billing",
        comment="One row per issued invoice or credit note, as it was printed. Rows are added, never changed; a void is a row of its own.",
    )
    op.create_index(
        "ix_documents_corrects",
        "documents",
        ["corrects_document_id"],
        unique=False,
        schema="billing",
        postgresql_where=sa.text("corrects_document_id is not null"),
    )
    op.create_index(
        "ix_documents_issued_with",
        "documents",
        ["issued_with_document_id"],
        unique=False,
        schema="billing",
        postgresql_where=sa.text("issued_with_document_id is not null"),
    )
    op.create_index(
        "ix_documents_posting_period", "documents", ["posting_period", "tenant_id"], unique=False, schema="billing"
    )
    op.create_table(
        "issuers",
        sa.Column(
            "version_id",
            sa.BigInteger(),
            sa.Identity(),
            nullable=False,
            comment="Order of recording: the later one counts.",
        ),
        sa.Column("entity_id", sa.Text(), nullable=False, comment="The entity of ledger.entities."),
        sa.Column("effective_from", sa.Date(), nullable=False, comment="From this day on, until the next."),
        sa.Column("name", sa.Text(), nullable=False, comment="Legal name, as printed."),
        sa.Column("address", postgresql.ARRAY(sa.Text()), nullable=False, comment="Lines of the address, as printed."),
        sa.Column("country", sa.CHAR(length=2), nullable=False, comment="ISO 3166-1 alpha-2."),
        sa.Column("tax_id", sa.Text(), nullable=True, comment="As printed; null where it has none."),
        sa.Column("email", sa.Text(), nullable=True, comment="Whom to ask; null: nobody is named."),
        sa.Column("invoice_prefix", sa.Text(), nullable=False, comment="In front of the number of an invoice."),
        sa.Column("credit_note_prefix", sa.Text(), nullable=False, comment="In front of the number of a credit note."),
        sa.Column("payment_days", sa.Integer(), nullable=False, comment="Days from issue until an invoice is due."),
        sa.Column("actor", sa.Text(), nullable=False, comment="Who wrote it down."),
        sa.Column(
            "recorded_at",
            _INSTANT,
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When, by the database's clock.",
        ),
        sa.CheckConstraint("invoice_prefix <> credit_note_prefix", name=op.f("ck_issuers_prefixes_differ")),
        sa.CheckConstraint("payment_days between 0 and 365", name=op.f("ck_issuers_payment_days_are_possible")),
        sa.PrimaryKeyConstraint("version_id", name=op.f("pk_issuers")),
        schema="billing",
        comment="One row per entity and change of how it stands on documents: in force from a day until the next row's.",
    )
    op.create_index(
        "ix_issuers_entity_id_effective_from",
        "issuers",
        ["entity_id", "effective_from"],
        unique=False,
        schema="billing",
    )
    op.create_table(
        "items",
        sa.Column(
            "version_id",
            sa.BigInteger(),
            sa.Identity(),
            nullable=False,
            comment="Order of recording: the later one counts.",
        ),
        sa.Column("item_id", sa.Text(), nullable=False, comment="Its name; of several rows the last one counts."),
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="Who agreed to it."),
        sa.Column(
            "kind",
            sa.Text(),
            nullable=False,
            comment="fee: an amount per period; minimum: what a month comes to at least; discount: what is taken off.",
        ),
        sa.Column("description", sa.Text(), nullable=False, comment="As printed."),
        sa.Column(
            "currency",
            sa.CHAR(length=3),
            nullable=True,
            comment="Of the amount, ISO 4217; null for a discount in percent.",
        ),
        sa.Column(
            "amount",
            sa.Numeric(),
            nullable=True,
            comment="Per period of a fee, per month otherwise; null for a discount in percent.",
        ),
        sa.Column(
            "percent",
            sa.Numeric(),
            nullable=True,
            comment="Of a discount: 10 takes off a tenth; null where it is an amount.",
        ),
        sa.Column("period", sa.Text(), nullable=True, comment="Of a fee: month, quarter or year of the calendar."),
        sa.Column(
            "timing",
            sa.Text(),
            nullable=True,
            comment="Of a fee: advance, on the invoice of the month that its period begins in; arrears, of the one that it ends in.",
        ),
        sa.Column(
            "feature", sa.Text(), nullable=True, comment="Minimum and discount: only usage of this feature; null: any."
        ),
        sa.Column(
            "model", sa.Text(), nullable=True, comment="Minimum and discount: only usage of this model; null: any."
        ),
        sa.Column("tax_category", sa.Text(), nullable=True, comment="Of a fee; null: the customer's."),
        sa.Column(
            "starts_on", sa.Date(), nullable=False, comment="The first day it counts for, in the tenant's calendar."
        ),
        sa.Column("ends_on", sa.Date(), nullable=True, comment="Exclusive; null: it goes on."),
        sa.Column("actor", sa.Text(), nullable=False, comment="Who wrote it down."),
        sa.Column(
            "recorded_at",
            _INSTANT,
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When, by the database's clock.",
        ),
        sa.CheckConstraint("(kind = 'fee') = (period is not null)", name=op.f("ck_items_fee_has_its_period")),
        sa.CheckConstraint("(kind = 'fee') = (timing is not null)", name=op.f("ck_items_fee_has_its_timing")),
        sa.CheckConstraint(
            "kind = 'fee' or (extract(day from starts_on) = 1 and coalesce(extract(day from ends_on), 1) = 1)",
            name=op.f("ck_items_counts_for_whole_months"),
        ),
        sa.CheckConstraint("kind in ('fee', 'minimum', 'discount')", name=op.f("ck_items_kind_is_known")),
        sa.CheckConstraint("percent is null or kind = 'discount'", name=op.f("ck_items_percent_is_a_discount")),
        sa.CheckConstraint("period in ('month', 'quarter', 'year')", name=op.f("ck_items_period_is_known")),
        sa.CheckConstraint("timing in ('advance', 'arrears')", name=op.f("ck_items_timing_is_known")),
        sa.CheckConstraint("(amount is null) = (currency is null)", name=op.f("ck_items_amount_has_its_currency")),
        sa.CheckConstraint("amount > 0", name=op.f("ck_items_amount_is_positive")),
        sa.CheckConstraint("ends_on >= starts_on", name=op.f("ck_items_ends_after_it_starts")),
        sa.CheckConstraint("num_nonnulls(amount, percent) = 1", name=op.f("ck_items_is_an_amount_or_percent")),
        sa.CheckConstraint("percent > 0 and percent <= 100", name=op.f("ck_items_percent_is_possible")),
        sa.PrimaryKeyConstraint("version_id", name=op.f("pk_items")),
        schema="billing",
        comment="One row per agreed item and change of it: what is billed besides usage.",
    )
    op.create_index("ix_items_item_id", "items", ["item_id", "version_id"], unique=False, schema="billing")
    op.create_index("ix_items_tenant_id", "items", ["tenant_id"], unique=False, schema="billing")
    op.create_table(
        "numbers",
        sa.Column("entity_id", sa.Text(), nullable=False, comment="Whose numbers."),
        sa.Column("kind", sa.Text(), nullable=False, comment="invoice or credit_note."),
        sa.Column(
            "last_value",
            sa.BigInteger(),
            nullable=False,
            comment="The last one given; moves in the transaction that issues.",
        ),
        sa.CheckConstraint("kind in ('invoice', 'credit_note')", name=op.f("ck_numbers_kind_is_known")),
        sa.PrimaryKeyConstraint("entity_id", "kind", name=op.f("pk_numbers")),
        schema="billing",
        comment="One row per entity and kind of document: its lock is what keeps numbers gapless.",
    )
    op.create_table(
        "parked",
        sa.Column("parked_id", sa.BigInteger(), sa.Identity(), nullable=False, comment="Order of refusals."),
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="Whose month."),
        sa.Column("posting_period", sa.Date(), nullable=False, comment="The first day of the month."),
        sa.Column(
            "currency",
            sa.CHAR(length=3),
            nullable=True,
            comment="Of the invoice; null where the whole month is refused.",
        ),
        sa.Column(
            "reasons",
            postgresql.ARRAY(sa.Text()),
            nullable=False,
            comment="What keeps it from being issued, a line each.",
        ),
        sa.Column("actor", sa.Text(), nullable=False, comment="Who tried."),
        sa.Column(
            "parked_at",
            _INSTANT,
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When, by the database's clock.",
        ),
        sa.CheckConstraint("cardinality(reasons) > 0", name=op.f("ck_parked_has_a_reason")),
        sa.PrimaryKeyConstraint("parked_id", name=op.f("pk_parked")),
        schema="billing",
        comment="One row per refusal to issue that says something new; what was issued since waits no longer.",
    )
    op.create_index(
        "ix_parked_posting_period", "parked", ["posting_period", "tenant_id"], unique=False, schema="billing"
    )
    op.create_table(
        "tax_rates",
        sa.Column(
            "version_id",
            sa.BigInteger(),
            sa.Identity(),
            nullable=False,
            comment="Order of recording: the later one counts.",
        ),
        sa.Column("entity_id", sa.Text(), nullable=False, comment="Who charges it."),
        sa.Column("category", sa.Text(), nullable=False, comment="Such as standard, exempt, reverse-charge."),
        sa.Column("effective_from", sa.Date(), nullable=False, comment="From this day on, until the next."),
        sa.Column("rate", sa.Numeric(), nullable=False, comment="Share of the base: 0.2 is twenty percent."),
        sa.Column("label", sa.Text(), nullable=False, comment="As printed, such as VAT 20 %."),
        sa.Column("actor", sa.Text(), nullable=False, comment="Who wrote it down."),
        sa.Column(
            "recorded_at",
            _INSTANT,
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When, by the database's clock.",
        ),
        sa.CheckConstraint("rate >= 0 and rate < 1", name=op.f("ck_tax_rates_rate_is_a_share")),
        sa.PrimaryKeyConstraint("version_id", name=op.f("pk_tax_rates")),
        schema="billing",
        comment="One row per entity, category and change of the rate: in force from a day until the next row's.",
    )
    op.create_index(
        "ix_tax_rates_entity_id_category",
        "tax_rates",
        ["entity_id", "category", "effective_from"],
        unique=False,
        schema="billing",
    )
    op.create_table(
        "credited_entries",
        sa.Column("posting_period", sa.Date(), nullable=False, comment="The month of the entry."),
        sa.Column("entry_id", sa.BigInteger(), nullable=False, comment="The entry, which stands on no invoice."),
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="Who pays."),
        sa.Column("document_id", sa.Text(), nullable=False, comment="The credit note that it stands on."),
        sa.ForeignKeyConstraint(
            ["document_id"], ["billing.documents.document_id"], name=op.f("fk_credited_entries_document_id")
        ),
        sa.PrimaryKeyConstraint("posting_period", "entry_id", name=op.f("pk_credited_entries")),
        schema="billing",
        comment="One row per entry that a credit note for usage is made of.",
    )
    op.create_index(
        "ix_credited_entries_tenant_id",
        "credited_entries",
        ["tenant_id", "posting_period"],
        unique=False,
        schema="billing",
    )
    op.create_table(
        "document_credits",
        sa.Column("document_id", sa.Text(), nullable=False, comment="Whose credit."),
        sa.Column("place", sa.Integer(), nullable=False, comment="In the order in which grants burn, from 1."),
        sa.Column(
            "grant_id", sa.Text(), nullable=False, comment="The grant that pays; on a credit note, that gets it back."
        ),
        sa.Column("description", sa.Text(), nullable=False, comment="As printed."),
        sa.Column("amount", sa.Numeric(), nullable=False, comment="Above zero."),
        sa.CheckConstraint("amount > 0", name=op.f("ck_document_credits_amount_is_positive")),
        sa.ForeignKeyConstraint(
            ["document_id"], ["billing.documents.document_id"], name=op.f("fk_document_credits_document_id")
        ),
        sa.PrimaryKeyConstraint("document_id", "place", name=op.f("pk_document_credits")),
        schema="billing",
        comment="One row per document and grant that it burns or, a credit note, gives back to.",
    )
    op.create_table(
        "document_lines",
        sa.Column("document_id", sa.Text(), nullable=False, comment="Whose line."),
        sa.Column("line_no", sa.Integer(), nullable=False, comment="Its place, from 1."),
        sa.Column(
            "kind",
            sa.Text(),
            nullable=False,
            comment="usage: the fold of entries; fee, minimum, discount: agreed; owed_back: what a credit note gives back; credit: on a credit note.",
        ),
        sa.Column("description", sa.Text(), nullable=False, comment="As printed."),
        sa.Column("service_start", sa.Date(), nullable=False, comment="The first day that it is for."),
        sa.Column("service_end", sa.Date(), nullable=False, comment="Exclusive."),
        sa.Column("feature", sa.Text(), nullable=True, comment="What it was for; null where there is none."),
        sa.Column("provider", sa.Text(), nullable=True, comment="Who served it; null where nobody did."),
        sa.Column("model", sa.Text(), nullable=True, comment="The canonical id; null where there is none."),
        sa.Column("meter", sa.Text(), nullable=True, comment="What was counted; null where it is no usage."),
        sa.Column(
            "quantity", sa.Numeric(), nullable=True, comment="In the meter's unit; null where the line is an amount."
        ),
        sa.Column(
            "unit_price",
            sa.Numeric(),
            nullable=True,
            comment="For `per` units, unrounded; null where its entries have several.",
        ),
        sa.Column("per", sa.BigInteger(), nullable=True, comment="Units that the price is for."),
        sa.Column("exact_amount", sa.Numeric(), nullable=False, comment="Unrounded, in the document's currency."),
        sa.Column(
            "amount",
            sa.Numeric(),
            nullable=False,
            comment="As printed; the lines of a tax category add up to its rounded sum.",
        ),
        sa.Column("tax_category", sa.Text(), nullable=False, comment="Under which it is taxed."),
        sa.Column("item_id", sa.Text(), nullable=True, comment="The agreed item that it comes from."),
        sa.Column(
            "charged_amount",
            sa.Numeric(),
            nullable=True,
            comment="Of usage: as posted in the ledger, in charged_currency.",
        ),
        sa.Column("charged_currency", sa.CHAR(length=3), nullable=True, comment="Of charged_amount, ISO 4217."),
        sa.Column(
            "exchange_rate",
            sa.Numeric(),
            nullable=True,
            comment="What one of charged_currency is in the document's; null: the same currency.",
        ),
        sa.Column("exchange_rate_at", _INSTANT, nullable=True, comment="Since when that rate is in force."),
        sa.CheckConstraint(
            "kind in ('usage', 'fee', 'minimum', 'discount', 'owed_back', 'credit')",
            name=op.f("ck_document_lines_kind_is_known"),
        ),
        sa.CheckConstraint(
            "(charged_amount is null) = (charged_currency is null)",
            name=op.f("ck_document_lines_charge_has_its_currency"),
        ),
        sa.CheckConstraint(
            "(exchange_rate is null) = (exchange_rate_at is null)", name=op.f("ck_document_lines_rate_has_its_time")
        ),
        sa.CheckConstraint("num_nonnulls(unit_price, per) <> 1", name=op.f("ck_document_lines_price_has_its_per")),
        sa.CheckConstraint("service_start < service_end", name=op.f("ck_document_lines_service_has_a_length")),
        sa.ForeignKeyConstraint(
            ["document_id"], ["billing.documents.document_id"], name=op.f("fk_document_lines_document_id")
        ),
        sa.PrimaryKeyConstraint("document_id", "line_no", name=op.f("pk_document_lines")),
        schema="billing",
        comment="One row per line of a document.",
    )
    op.create_table(
        "document_taxes",
        sa.Column("document_id", sa.Text(), nullable=False, comment="Whose tax."),
        sa.Column("category", sa.Text(), nullable=False, comment="Of the lines that it is on."),
        sa.Column("label", sa.Text(), nullable=False, comment="As printed."),
        sa.Column("rate", sa.Numeric(), nullable=False, comment="Share of the base."),
        sa.Column("exact_base", sa.Numeric(), nullable=False, comment="Of its lines, unrounded."),
        sa.Column("base", sa.Numeric(), nullable=False, comment="The rounded sum of its lines."),
        sa.Column("amount", sa.Numeric(), nullable=False, comment="Of the tax, rounded."),
        sa.ForeignKeyConstraint(
            ["document_id"], ["billing.documents.document_id"], name=op.f("fk_document_taxes_document_id")
        ),
        sa.PrimaryKeyConstraint("document_id", "category", name=op.f("pk_document_taxes")),
        schema="billing",
        comment="One row per document and tax category.",
    )
    op.create_table(
        "voids",
        sa.Column("document_id", sa.Text(), nullable=False, comment="What no longer counts."),
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="As on the document."),
        sa.Column("posting_period", sa.Date(), nullable=False, comment="As on the document."),
        sa.Column("currency", sa.CHAR(length=3), nullable=False, comment="As on the document."),
        sa.Column(
            "revision", sa.SmallInteger(), nullable=True, comment="As on the document: the next one may be issued."
        ),
        sa.Column("reason", sa.Text(), nullable=False, comment="Why."),
        sa.Column("actor", sa.Text(), nullable=False, comment="Who."),
        sa.Column("second_person", sa.Text(), nullable=True, comment="Who agreed; null where nobody had to."),
        sa.Column(
            "voided_at",
            _INSTANT,
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="By the database's clock.",
        ),
        sa.ForeignKeyConstraint(
            ["document_id", "tenant_id", "posting_period", "currency", "revision"],
            [
                "billing.documents.document_id",
                "billing.documents.tenant_id",
                "billing.documents.posting_period",
                "billing.documents.currency",
                "billing.documents.revision",
            ],
            name="fk_voids_whole",
        ),
        sa.ForeignKeyConstraint(["document_id"], ["billing.documents.document_id"], name="fk_voids_document"),
        sa.PrimaryKeyConstraint("document_id", name=op.f("pk_voids")),
        sa.UniqueConstraint("tenant_id", "posting_period", "currency", "revision", name="uq_voids_pair"),
        schema="billing",
        comment="One row per document that no longer counts. The document stays as it was.",
    )
    # The two tables name each other: an invoice is issued again once the one before it is voided.
    op.create_foreign_key(
        "fk_documents_previous_is_voided", "documents", "voids",
        ["tenant_id", "posting_period", "currency", "previous_revision"],
        ["tenant_id", "posting_period", "currency", "revision"],
        source_schema="billing", referent_schema="billing",
    )  # fmt: skip


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    # What the routines hang on the tables, where it would hold one of them back.
    op.execute(
        "drop view if exists billing.live_documents, billing.waiting, billing.own_documents, billing.own_document_lines"
    )
    op.execute("drop function if exists billing.what_depends_on(text, date)")
    op.drop_constraint("fk_documents_previous_is_voided", "documents", schema="billing")
    for table in (
        "voids",
        "document_taxes",
        "document_lines",
        "document_credits",
        "credited_entries",
        "tax_rates",
        "parked",
        "numbers",
        "items",
        "issuers",
        "documents",
        "customers",
        "bounds",
    ):
        op.drop_table(table, schema="billing")
