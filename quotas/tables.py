"""The tables of the schema `quotas`. The trigger that moves windows stands in sql/60_windows.sql, from MOVEMENTS."""

from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from ledger.tables import NAMING, Amount, Id, Instant, now, one_of

metadata = sa.MetaData(schema="quotas", naming_convention=NAMING)

UNITS: Final = (
    "charge",
    "cost",
    "total_tokens",
    "input_tokens",
    "output_tokens",
    "input_tokens_without_cache_reads",
    "requests",
)
WINDOWS: Final = ("day", "days", "week", "month", "anchored_month", "lifetime")
GROUPS: Final = (
    "tenant_id",
    "provider_account",
    "feature",
    "model",
    "route",
    "lane",
    "api_key_id",
    "subject_id",
    "currency",
)

EXCESS_CAUSES: Final = (
    "overrun",  # usage under an open reservation was more than it held
    "late_settle",  # usage came after its reservation had been settled, voided or expired
    "unreserved",  # usage without a reservation, or in a budget that its reservation does not hold against
    "correction",  # an adjustment or a reversal
    "limit",  # a person moved the limit, the hardness or the beginning of the budget
    "release",  # a hold was let go without usage
    "away",  # a replica admitted calls while this database could not be asked, as the budget lets it
)
STATES: Final = (
    "held",  # promised, and may expire
    "awaiting_entry",  # the call has ended; its usage is to come, and nothing expires
    "settled",  # its final usage is in the ledger
    "voided",  # given back by the caller, or by a person
    "expired",  # given back by the sweep: nobody spoke of it in time
)

budgets = sa.Table(
    "budgets",
    metadata,
    sa.Column("budget_id", sa.Text, primary_key=True, comment="Chosen by whoever makes it."),
    sa.Column("tenant_id", sa.Text, comment="Null: every tenant."),
    sa.Column("provider_account", sa.Text, comment="Null: any. Likewise for the columns down to tags."),
    sa.Column("feature", sa.Text, comment="Only this feature; null: any."),
    sa.Column("model", sa.Text, comment="Only this canonical model; null: any."),
    sa.Column("route", sa.Text, comment="Only this route; null: any."),
    sa.Column("lane", sa.Text, comment="Only this lane; null: any."),
    sa.Column("api_key_id", sa.Text, comment="Only calls with this key of the sender; null: any."),
    sa.Column("subject_id", Id, comment="Only this user; null: any."),
    sa.Column("tags", JSONB, comment="Entries whose tags contain these."),
    sa.Column(
        "group_by", ARRAY(sa.Text), nullable=False, server_default="{}", comment="One window for each combination."
    ),
    sa.Column("unit", sa.Text, nullable=False, comment="A book, or tokens, or requests."),
    sa.Column("currency", sa.CHAR(3), comment="Of a book; null where windows are grouped by currency."),
    sa.Column("window_kind", sa.Text, nullable=False, comment="day, days, week, month, anchored_month or lifetime."),
    sa.Column("window_days", sa.Integer, comment="Length, for the kind days."),
    sa.Column("anchor", sa.Date, comment="First day of a window of days; day of the month of an anchored one."),
    sa.Column("first_window", sa.Date, nullable=False, comment="Movements into earlier windows are not followed."),
    sa.Column("limit_amount", Amount, comment="Zero forbids everything; null does not limit."),
    sa.Column(
        "hardness",
        sa.Text,
        nullable=False,
        server_default="hard",
        comment="hard: refuses; soft: warns; shadow: only counts.",
    ),
    sa.Column("interactive_reserve", Amount, nullable=False, server_default="0", comment="Not for the batch lane."),
    sa.Column("thresholds", ARRAY(sa.Numeric), nullable=False, server_default="{}", comment="Shares of the limit."),
    sa.Column(
        "unknown_price",
        sa.Text,
        nullable=False,
        server_default="refuse",
        comment="What to do with a call whose price nobody knows: refuse or admit.",
    ),
    sa.Column(
        "missing_estimate",
        sa.Text,
        nullable=False,
        server_default="refuse",
        comment="What to do with a call without an estimate: refuse it, admit it, or hold missing_estimate_amount for it.",
    ),
    sa.Column("missing_estimate_amount", Amount, comment="What is held for a call without an estimate; for hold only."),
    sa.Column(
        "steps",
        JSONB,
        nullable=False,
        server_default="[]",
        comment="What is done before the limit is reached, by share of it, ascending: [{at, action: degrade or refuse, route, output_tokens_max, hold}].",
    ),
    sa.Column(
        "when_away",
        sa.Text,
        nullable=False,
        server_default="refuse",
        comment="What a gateway does while this database cannot be asked: refuse or admit.",
    ),
    sa.Column("away_amount", Amount, comment="Up to how much a gateway admits by itself then; for admit only."),
    sa.Column("description", sa.Text, comment="For people, in their words."),
    sa.Column("created_at", Instant, nullable=False, server_default=now(), comment="When it was made."),
    sa.Column("ended_at", Instant, comment="From here on it neither limits nor follows."),
    one_of("unit", *UNITS),
    one_of("window_kind", *WINDOWS),
    one_of("hardness", "hard", "soft", "shadow"),
    one_of("unknown_price", "refuse", "admit"),
    one_of("missing_estimate", "refuse", "admit", "hold"),
    sa.CheckConstraint(
        "(missing_estimate = 'hold') = (missing_estimate_amount is not null)", name="hold_has_its_amount"
    ),
    sa.CheckConstraint("missing_estimate_amount >= 0", name="missing_estimate_amount_is_not_negative"),
    one_of("when_away", "refuse", "admit"),
    sa.CheckConstraint("(when_away = 'admit') = (away_amount is not null)", name="away_has_its_amount"),
    sa.CheckConstraint("away_amount >= 0", name="away_amount_is_not_negative"),
    sa.CheckConstraint("jsonb_typeof(steps) = 'array'", name="steps_are_a_list"),
    sa.CheckConstraint(
        f"group_by <@ array[{', '.join(repr(name) for name in GROUPS)}]::text[]", name="group_by_is_known"
    ),
    sa.CheckConstraint(
        "(unit in ('charge', 'cost')) = (currency is not null or 'currency' = any (group_by))",
        name="money_has_a_currency",
    ),
    sa.CheckConstraint(
        "limit_amount is null or unit not in ('charge', 'cost') or currency is not null", name="limit_has_a_currency"
    ),
    sa.CheckConstraint("(window_kind = 'days') = (window_days is not null)", name="days_have_a_length"),
    sa.CheckConstraint("window_days > 0", name="length_is_positive"),
    sa.CheckConstraint(
        "(window_kind in ('days', 'anchored_month')) = (anchor is not null)", name="anchor_where_needed"
    ),
    sa.CheckConstraint("limit_amount >= 0", name="limit_is_not_negative"),
    # Serves the budgets of one tenant, and those of all tenants (null).
    sa.Index("ix_budgets_tenant_id", "tenant_id"),
    comment="One row per budget. Scope, unit and window never change: a change of those is a new budget.",
)

group_limits = sa.Table(
    "group_limits",
    metadata,
    sa.Column(
        "budget_id", sa.Text, sa.ForeignKey("quotas.budgets.budget_id"), primary_key=True, comment="A budget by groups."
    ),
    sa.Column("group_key", sa.Text, primary_key=True, comment="Which group: a JSON array as in quotas.windows."),
    sa.Column("limit_amount", Amount, comment="Instead of the budget's; null: this group is not limited."),
    sa.CheckConstraint("limit_amount >= 0", name="limit_is_not_negative"),
    comment="One row per group of a budget whose limit is its own; all others have the budget's.",
)

turns = sa.Table(
    "turns",
    metadata,
    sa.Column(
        "budget_id", sa.Text, sa.ForeignKey("quotas.budgets.budget_id"), primary_key=True, comment="A prepaid budget."
    ),
    sa.Column(
        "at",
        Instant,
        primary_key=True,
        comment="When a grant begins or ends: from then on the limit must be set anew. 1970: a correction has given back.",
    ),
    sa.Column(
        "lapses",
        Amount,
        nullable=False,
        comment="Taken off the limit from then on: what grants that end then had left when it was set, or what was given back since.",
    ),
    sa.CheckConstraint("lapses >= 0", name="lapses_is_not_negative"),
    comment="One row per prepaid budget and instant to come at which what is left of its grants changes by itself.",
)

budget_versions = sa.Table(
    "budget_versions",
    metadata,
    sa.Column(
        "budget_id", sa.Text, sa.ForeignKey("quotas.budgets.budget_id"), primary_key=True, comment="Whose terms."
    ),
    sa.Column("version", sa.Integer, primary_key=True, comment="From 1, without a gap."),
    sa.Column("at", Instant, nullable=False, server_default=now(), comment="From when these are the terms."),
    sa.Column("actor", sa.Text, nullable=False, comment="Who set them."),
    sa.Column("reason", sa.Text, comment="Why, in the actor's words."),
    sa.Column(
        "terms",
        JSONB,
        nullable=False,
        comment="All of them, and the limits of groups: amounts as text, ended_at once over.",
    ),
    comment="What the terms of a budget were at any instant: one row for each change, never changed itself.",
)

windows = sa.Table(
    "windows",
    metadata,
    sa.Column(
        "budget_id", sa.Text, sa.ForeignKey("quotas.budgets.budget_id"), primary_key=True, comment="Whose window it is."
    ),
    sa.Column("group_key", sa.Text, primary_key=True, comment="JSON array of the group_by values; empty without any."),
    sa.Column("window_start", sa.Date, primary_key=True, comment="First local day, in the tenant's zone."),
    sa.Column("tenant_id", sa.Text, comment="Where the scope or the group names one."),
    sa.Column("currency", sa.CHAR(3), comment="Of money; null for tokens and requests."),
    sa.Column(
        "posted", Amount, nullable=False, server_default="0", comment="Moved by the insert into ledger.entries itself."
    ),
    sa.Column("held", Amount, nullable=False, server_default="0", comment="Promised by reservations and not yet used."),
    sa.Column(
        "unpriced_count",
        sa.BigInteger,
        nullable=False,
        server_default="0",
        comment="Requests in scope without an amount or count.",
    ),
    sa.Column(
        "unpriced_tokens",
        sa.BigInteger,
        nullable=False,
        server_default="0",
        comment="Tokens in scope without an amount, later parts of a request included: what is posted is too low while above zero.",
    ),
    sa.Column("last_batch_id", sa.BigInteger, comment="The newest batch that moved it; null before the first."),
    # Serves the answer to "what remains" for a tenant.
    sa.Index("ix_windows_tenant_id_window_start", "tenant_id", "window_start"),
    comment="One row per budget, group and window.",
    # Each commit updates the same few rows: room on the page keeps the updates within it.
    postgresql_with={"fillfactor": "50"},
)

excess = sa.Table(
    "excess",
    metadata,
    sa.Column("excess_id", sa.BigInteger, sa.Identity(), primary_key=True, comment="Order of recording."),
    sa.Column("budget_id", sa.Text, nullable=False, comment="Whose window it is."),
    sa.Column("group_key", sa.Text, nullable=False, comment="Which group of it; empty without any."),
    sa.Column("window_start", sa.Date, nullable=False, comment="Its first local day."),
    sa.Column("batch_id", sa.BigInteger, comment="Null where no batch did it: the limit was moved, or a hold let go."),
    sa.Column(
        "change",
        Amount,
        nullable=False,
        comment="Of posted + held above the limit; the changes of a window sum to its excess.",
    ),
    sa.Column(
        "cause",
        sa.Text,
        nullable=False,
        comment="Of the largest movement; EXCESS_CAUSES says what each means.",
    ),
    sa.Column("at", Instant, nullable=False, server_default=now(), comment="When it was written."),
    one_of("cause", *EXCESS_CAUSES),
    sa.Index("ix_excess_window", "budget_id", "group_key", "window_start"),
    comment="One row per commit that changed how far a window is above its hard limit.",
)

threshold_notes = sa.Table(
    "threshold_notes",
    metadata,
    sa.Column("budget_id", sa.Text, primary_key=True, comment="Whose window it is."),
    sa.Column("group_key", sa.Text, primary_key=True, comment="Which group of it; empty without any."),
    sa.Column("window_start", sa.Date, primary_key=True, comment="Its first local day."),
    sa.Column("threshold", sa.Numeric, primary_key=True, comment="The share of the limit that was reached."),
    sa.Column("batch_id", sa.BigInteger, comment="The batch that reached it; null where the limit was moved."),
    sa.Column("at", Instant, nullable=False, server_default=now(), comment="When it was written."),
    comment="One row per window and threshold, written when it is first reached.",
)

reservations = sa.Table(
    "reservations",
    metadata,
    sa.Column("tenant_id", sa.Text, primary_key=True, comment="As the ask and the usage event name it."),
    sa.Column("reservation_id", sa.Text, primary_key=True, comment="The caller's idempotency key."),
    sa.Column("content_hash", Id, nullable=False, comment="Of the ask: the same id with another one is a conflict."),
    sa.Column("operation_id", sa.Text, comment="The logical request that it belongs to."),
    sa.Column("basis", sa.Text, nullable=False, comment="worst_case or expected."),
    sa.Column("state", sa.Text, nullable=False, comment="held, awaiting_entry, settled, voided or expired."),
    sa.Column("provider_account", sa.Text, comment="As asked. Likewise for the columns down to output_tokens."),
    sa.Column("feature", sa.Text, comment="What the call is for."),
    sa.Column("model", sa.Text, comment="Canonical id; null where nobody knows the name."),
    sa.Column("route", sa.Text, comment="Where the call goes: the degrade step's route where it has one."),
    sa.Column("lane", sa.Text, comment="interactive or batch."),
    sa.Column("api_key_id", sa.Text, comment="The sender's key."),
    sa.Column("input_tokens", sa.BigInteger, comment="Estimated; null where unknown."),
    sa.Column("output_tokens", sa.BigInteger, comment="Estimated, or the cap; null where unknown."),
    sa.Column("step", JSONB, comment="The degrade step that it was admitted by: route, output_tokens_max."),
    # One row for each call, however many budgets it is held against: they are written and read together, thousands a second.
    sa.Column(
        "budget_ids", ARRAY(sa.Text), nullable=False, comment="What it is held against; quotas.holds has them as rows."
    ),
    sa.Column("group_keys", ARRAY(sa.Text), nullable=False, comment="By budget: which group of it."),
    sa.Column(
        "window_starts", ARRAY(sa.Date), nullable=False, comment="By budget: the window in force at the decision."
    ),
    sa.Column("reserved", ARRAY(sa.Numeric), nullable=False, comment="By budget: the amount promised."),
    sa.Column(
        "stated", ARRAY(sa.Numeric), comment="By budget: what stays held after the call, where its end stated less."
    ),
    sa.Column(
        "posted_under", ARRAY(sa.Numeric), nullable=False, comment="By budget: what its entries have posted there."
    ),
    sa.Column("decided_at", Instant, nullable=False, comment="By the database's clock."),
    sa.Column("expires_at", Instant, nullable=False, comment="Held longer than this without a word, it may expire."),
    sa.Column("ended_at", Instant, comment="When the call was said to have ended, or the hold went."),
    sa.Column("first_batch_id", sa.BigInteger, comment="The first batch with an entry that names it."),
    one_of("state", *STATES),
    one_of("basis", "worst_case", "expected"),
    sa.CheckConstraint(
        "cardinality(budget_ids) = cardinality(group_keys) and cardinality(budget_ids) = cardinality(window_starts)"
        " and cardinality(budget_ids) = cardinality(reserved) and cardinality(budget_ids) = cardinality(posted_under)",
        name="lists_go_together",
    ),
    # Serves the sweep, the list of those that wait for an entry, and tokens in flight: only what is open is in it.
    sa.Index("ix_reservations_open", "expires_at", postgresql_where=sa.text("state in ('held', 'awaiting_entry')")),
    # Serves the sweep that forgets what has been closed for long.
    sa.Index("ix_reservations_decided_at", "decided_at", postgresql_using="brin"),
    comment="One row per admitted ask: what is held until its usage is in the ledger.",
    postgresql_with={"fillfactor": "80"},
)

decisions = sa.Table(
    "decisions",
    metadata,
    sa.Column("decision_id", sa.BigInteger, sa.Identity(), primary_key=True, comment="Order of recording."),
    sa.Column("at", Instant, nullable=False, comment="When it was decided, by the database's clock."),
    sa.Column("tenant_id", sa.Text, nullable=False, comment="As the ask names it."),
    sa.Column(
        "reservation_id", sa.Text, nullable=False, comment="As the ask names it; a refusal keeps no reservation."
    ),
    sa.Column("operation_id", sa.Text, comment="The logical request."),
    sa.Column(
        "kind",
        sa.Text,
        nullable=False,
        comment="refused; degraded; soft: admitted above a soft limit; shadow: what a shadow limit would have refused.",
    ),
    sa.Column("reason", sa.Text, nullable=False, comment="limit, unknown_price or missing_estimate."),
    sa.Column("budget_id", sa.Text, nullable=False, comment="The tightest budget that said so."),
    sa.Column("group_key", sa.Text, nullable=False, comment="Which group of it."),
    sa.Column("window_start", sa.Date, nullable=False, comment="Its window."),
    sa.Column("asked", Amount, comment="What the call would have taken of it; null where unknown."),
    sa.Column("taken", Amount, nullable=False, comment="Posted and held of it before the call."),
    sa.Column("limit_amount", Amount, comment="What held for the call's lane."),
    sa.Column("feature", sa.Text, comment="As asked. Likewise for the columns down to api_key_id."),
    sa.Column("model", sa.Text, comment="Canonical id."),
    sa.Column("route", sa.Text, comment="Before any step."),
    sa.Column("lane", sa.Text, comment="interactive or batch."),
    sa.Column("api_key_id", sa.Text, comment="The sender's key."),
    one_of("kind", "refused", "degraded", "soft", "shadow"),
    # Serves "what was refused, and why" for a tenant.
    sa.Index("ix_decisions_tenant_id_at", "tenant_id", "at"),
    # Serves the sweep by age.
    sa.Index("ix_decisions_at", "at", postgresql_using="brin"),
    comment="One row per ask that was refused, degraded, or passed a soft or shadow limit; kept for a limited time.",
)

grants = sa.Table(
    "grants",
    metadata,
    sa.Column("grant_id", sa.Text, primary_key=True, comment="What people name it by."),
    sa.Column("tenant_id", sa.Text, nullable=False, comment="Whose usage burns it."),
    sa.Column("currency", sa.CHAR(3), nullable=False, comment="Only charges in this currency burn it."),
    sa.Column("feature", sa.Text, comment="Only usage of this feature burns it; null: any."),
    sa.Column("model", sa.Text, comment="Only usage of this canonical model burns it; null: any."),
    sa.Column("priority", sa.Integer, nullable=False, server_default="100", comment="The lower one burns first."),
    sa.Column("effective_at", Instant, nullable=False, comment="Usage that occurred from here on burns it."),
    sa.Column("expires_at", Instant, comment="Exclusive end; null: it does not expire."),
    sa.Column("description", sa.Text, comment="For people, in their words."),
    sa.Column("created_at", Instant, nullable=False, server_default=now(), comment="When it was made."),
    sa.CheckConstraint("expires_at > effective_at", name="expires_after_its_start"),
    # Serves the balance of a tenant.
    sa.Index("ix_grants_tenant_id", "tenant_id"),
    comment="One row per grant: what a tenant paid or was given in advance. Never changed; what happens to it are movements.",
)

grant_movements = sa.Table(
    "grant_movements",
    metadata,
    sa.Column("movement_id", sa.BigInteger, sa.Identity(), primary_key=True, comment="Order of recording."),
    sa.Column(
        "grant_id", sa.Text, sa.ForeignKey("quotas.grants.grant_id"), nullable=False, comment="Which grant moves."
    ),
    sa.Column(
        "kind",
        sa.Text,
        nullable=False,
        comment="granted; adjusted by a person; revoked; expired: what was not burnt by its end; burnt: booked by an invoice.",
    ),
    sa.Column(
        "amount", Amount, nullable=False, comment="Above zero adds; the movements sum to what is left on the books."
    ),
    sa.Column("key", sa.Text, nullable=False, comment="The caller's: the same act under the same key is done once."),
    sa.Column("posting_period", sa.Date, comment="Of the invoice, for burnt."),
    sa.Column("actor", sa.Text, nullable=False, comment="Who."),
    sa.Column("reason", sa.Text, comment="Why, in the actor's words."),
    sa.Column("at", Instant, nullable=False, server_default=now(), comment="When, by the database's clock."),
    one_of("kind", "granted", "adjusted", "revoked", "expired", "burnt"),
    sa.CheckConstraint(
        "case kind when 'granted' then amount > 0 when 'revoked' then amount < 0 when 'expired' then amount < 0"
        " else amount <> 0 end",
        name="amount_has_its_sign",
    ),
    sa.CheckConstraint("(kind = 'burnt') = (posting_period is not null)", name="burnt_has_its_period"),
    # Serves the refusal of an act that was done already.
    sa.UniqueConstraint("key"),
    # Serves the balance of a grant.
    sa.Index("ix_grant_movements_grant_id", "grant_id"),
    comment="One row per movement of a grant; never changed.",
)

webhook_endpoints = sa.Table(
    "webhook_endpoints",
    metadata,
    sa.Column("endpoint_id", sa.Text, primary_key=True, comment="What people name it by."),
    sa.Column("tenant_id", sa.Text, comment="Hears of this tenant only; null: the operator's, hears of everybody."),
    sa.Column("url", sa.Text, nullable=False, comment="Where messages are sent."),
    sa.Column("kinds", ARRAY(sa.Text), nullable=False, server_default="{}", comment="Only these kinds; empty: all."),
    sa.Column(
        "created_at", Instant, nullable=False, server_default=now(), comment="It hears of what happens from here on."
    ),
    sa.Column("failing_since", Instant, comment="The first failure after the last success; null while it works."),
    sa.Column("disabled_at", Instant, comment="Nothing is sent from here on; what waits goes on to wait."),
    sa.Column("disabled_reason", sa.Text, comment="Why, in a few words."),
    sa.Column("removed_at", Instant, comment="Gone for good; the row stays for what was delivered."),
    comment="One row per receiver of webhooks.",
)

webhook_secrets = sa.Table(
    "webhook_secrets",
    metadata,
    sa.Column("secret_id", sa.BigInteger, sa.Identity(), primary_key=True, comment="Order of making."),
    sa.Column(
        "endpoint_id",
        sa.Text,
        sa.ForeignKey("quotas.webhook_endpoints.endpoint_id"),
        nullable=False,
        comment="Whose messages it signs.",
    ),
    sa.Column(
        "secret", sa.Text, nullable=False, comment="As the receiver has it; only tallystick_operator may read it."
    ),
    sa.Column("created_at", Instant, nullable=False, server_default=now(), comment="When it was made."),
    sa.Column("expires_at", Instant, comment="Signs no more from here on; null: it is the newest."),
    # Serves the signing of a message.
    sa.Index("ix_webhook_secrets_endpoint_id", "endpoint_id"),
    comment="What messages are signed with: two for an endpoint while it changes from one to the next.",
)

outbox = sa.Table(
    "outbox",
    metadata,
    sa.Column("message_id", Id, primary_key=True, comment="The receiver's webhook-id, the same each time it is sent."),
    sa.Column("fact", sa.Text, nullable=False, comment="What it is about: one message for each fact."),
    sa.Column("kind", sa.Text, nullable=False, comment="budget.exhausted and others; quotas/README.md lists them."),
    sa.Column("tenant_id", sa.Text, comment="Whom it is about; null: several, for the operator alone."),
    sa.Column("payload", JSONB, nullable=False, comment="The body, as it is sent."),
    sa.Column("created_at", Instant, nullable=False, server_default=now(), comment="When it happened."),
    sa.UniqueConstraint("fact"),
    # Serves the sweep by age.
    sa.Index("ix_outbox_created_at", "created_at", postgresql_using="brin"),
    comment="One row per message, written in the transaction that made it true; kept for 90 days.",
)

deliveries = sa.Table(
    "deliveries",
    metadata,
    sa.Column(
        "message_id",
        Id,
        sa.ForeignKey("quotas.outbox.message_id", ondelete="CASCADE"),
        primary_key=True,
        comment="What is sent.",
    ),
    # No foreign key: the commit that writes it must not wait for a change of the endpoint.
    sa.Column("endpoint_id", sa.Text, primary_key=True, comment="To whom."),
    sa.Column(
        "state", sa.Text, nullable=False, server_default="pending", comment="pending; delivered; failed: given up."
    ),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0", comment="How often it was sent."),
    sa.Column(
        "next_at",
        Instant,
        nullable=False,
        server_default=now(),
        comment="Not before; while it is being sent, when that is given up for lost.",
    ),
    sa.Column("last_at", Instant, comment="When it was last sent."),
    sa.Column("last_status", sa.Integer, comment="The last answer; null: there was none."),
    sa.Column("last_error", sa.Text, comment="What went wrong, in a few words; never an answer's own text."),
    sa.Column("delivered_at", Instant, comment="When it was taken."),
    one_of("state", "pending", "delivered", "failed"),
    # Serves the claim of what is due.
    sa.Index("ix_deliveries_due", "endpoint_id", "next_at", postgresql_where=sa.text("state = 'pending'")),
    comment="One row per message and endpoint.",
)
