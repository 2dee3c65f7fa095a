"""Add the outbox of webhooks: endpoints, their secrets, messages, deliveries.

Why: a threshold that is reached must be told to whoever can act on it, once, though the process that would tell it dies: the
message is written in the transaction that makes it true.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0021"
down_revision: str | None = "0020"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

Instant = postgresql.TIMESTAMP(timezone=True)
NOW = sa.text("clock_timestamp()")


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.create_table(
        "webhook_endpoints",
        sa.Column("endpoint_id", sa.Text(), nullable=False, comment="What people name it by."),
        sa.Column(
            "tenant_id",
            sa.Text(),
            nullable=True,
            comment="Hears of this tenant only; null: the operator's, hears of everybody.",
        ),
        sa.Column("url", sa.Text(), nullable=False, comment="Where messages are sent."),
        sa.Column(
            "kinds",
            postgresql.ARRAY(sa.Text()),
            server_default="{}",
            nullable=False,
            comment="Only these kinds; empty: all.",
        ),
        sa.Column(
            "created_at", Instant, server_default=NOW, nullable=False, comment="It hears of what happens from here on."
        ),
        sa.Column(
            "failing_since",
            Instant,
            nullable=True,
            comment="The first failure after the last success; null while it works.",
        ),
        sa.Column(
            "disabled_at",
            Instant,
            nullable=True,
            comment="Nothing is sent from here on; what waits goes on to wait.",
        ),
        sa.Column("disabled_reason", sa.Text(), nullable=True, comment="Why, in a few words."),
        sa.Column("removed_at", Instant, nullable=True, comment="Gone for good; the row stays for what was delivered."),
        sa.PrimaryKeyConstraint("endpoint_id", name=op.f("pk_webhook_endpoints")),
        schema="quotas",
        comment="One row per receiver of webhooks.",
    )
    op.create_table(
        "webhook_secrets",
        sa.Column("secret_id", sa.BigInteger(), sa.Identity(), nullable=False, comment="Order of making."),
        sa.Column("endpoint_id", sa.Text(), nullable=False, comment="Whose messages it signs."),
        sa.Column(
            "secret",
            sa.Text(),
            nullable=False,
            comment="As the receiver has it; only tallystick_operator may read it.",
        ),
        sa.Column("created_at", Instant, server_default=NOW, nullable=False, comment="When it was made."),
        sa.Column("expires_at", Instant, nullable=True, comment="Signs no more from here on; null: it is the newest."),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["quotas.webhook_endpoints.endpoint_id"], name=op.f("fk_webhook_secrets_endpoint_id")
        ),
        sa.PrimaryKeyConstraint("secret_id", name=op.f("pk_webhook_secrets")),
        schema="quotas",
        comment="What messages are signed with: two for an endpoint while it changes from one to the next.",
    )
    op.create_index("ix_webhook_secrets_endpoint_id", "webhook_secrets", ["endpoint_id"], unique=False, schema="quotas")
    op.create_table(
        "outbox",
        sa.Column(
            "message_id",
            postgresql.UUID(as_uuid=False),
            nullable=False,
            comment="The receiver's webhook-id, the same each time it is sent.",
        ),
        sa.Column("fact", sa.Text(), nullable=False, comment="What it is about: one message for each fact."),
        sa.Column(
            "kind", sa.Text(), nullable=False, comment="budget.exhausted and others; quotas/README.md lists them."
        ),
        sa.Column(
            "tenant_id",
            sa.Text(),
            nullable=True,
            comment="Whom it is about; null: several, for the operator alone.",
        ),
        sa.Column("payload", postgresql.JSONB(), nullable=False, comment="The body, as it is sent."),
        sa.Column("created_at", Instant, server_default=NOW, nullable=False, comment="When it happened."),
        sa.PrimaryKeyConstraint("message_id", name=op.f("pk_outbox")),
        sa.UniqueConstraint("fact", name=op.f("uq_outbox_fact")),
        schema="quotas",
        comment="One row per message, written in the transaction that made it true; kept for 90 days.",
    )
    op.create_index(
        "ix_outbox_created_at", "outbox", ["created_at"], unique=False, schema="quotas", postgresql_using="brin"
    )
    op.create_table(
        "deliveries",
        sa.Column("message_id", postgresql.UUID(as_uuid=False), nullable=False, comment="What is sent."),
        sa.Column("endpoint_id", sa.Text(), nullable=False, comment="To whom."),
        sa.Column(
            "state",
            sa.Text(),
            server_default="pending",
            nullable=False,
            comment="pending; delivered; failed: given up.",
        ),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False, comment="How often it was sent."),
        sa.Column(
            "next_at",
            Instant,
            server_default=NOW,
            nullable=False,
            comment="Not before; while it is being sent, when that is given up for lost.",
        ),
        sa.Column("last_at", Instant, nullable=True, comment="When it was last sent."),
        sa.Column("last_status", sa.Integer(), nullable=True, comment="The last answer; null: there was none."),
        sa.Column(
            "last_error",
            sa.Text(),
            nullable=True,
            comment="What went wrong, in a few words; never an answer's own text.",
        ),
        sa.Column("delivered_at", Instant, nullable=True, comment="When it was taken."),
        sa.CheckConstraint("state in ('pending', 'delivered', 'failed')", name=op.f("ck_deliveries_state_is_known")),
        sa.ForeignKeyConstraint(
            ["message_id"], ["quotas.outbox.message_id"], name=op.f("fk_deliveries_message_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("message_id", "endpoint_id", name=op.f("pk_deliveries")),
        schema="quotas",
        comment="One row per message and endpoint.",
    )
    op.create_index(
        "ix_deliveries_due",
        "deliveries",
        ["endpoint_id", "next_at"],
        unique=False,
        schema="quotas",
        postgresql_where=sa.text("state = 'pending'"),
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    # The triggers go with their functions, which name tables that are about to go.
    for function in (
        "tell_thresholds()",
        "tell_overruns()",
        "send_to_endpoints(text[], text[], text[], jsonb[])",
        "window_data(text, text, date, jsonb)",
    ):
        op.execute(f"drop function if exists quotas.{function} cascade")
    for table in ("deliveries", "outbox", "webhook_secrets", "webhook_endpoints"):
        op.drop_table(table, schema="quotas")
