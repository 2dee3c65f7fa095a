"""Add grants and their movements.

Why: what a tenant has paid or been given in advance is money: each movement is a row that nobody changes, and the balance
is their sum, never a column.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0015"
down_revision: str | None = "0014"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.create_table(
        "grants",
        sa.Column("grant_id", sa.Text(), nullable=False, comment="What people name it by."),
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="Whose usage burns it."),
        sa.Column("currency", sa.CHAR(length=3), nullable=False, comment="Only charges in this currency burn it."),
        sa.Column("feature", sa.Text(), nullable=True, comment="Only usage of this feature burns it; null: any."),
        sa.Column("model", sa.Text(), nullable=True, comment="Only usage of this canonical model burns it; null: any."),
        sa.Column("priority", sa.Integer(), server_default="100", nullable=False, comment="The lower one burns first."),
        sa.Column(
            "effective_at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=False,
            comment="Usage that occurred from here on burns it.",
        ),
        sa.Column(
            "expires_at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=True,
            comment="Exclusive end; null: it does not expire.",
        ),
        sa.Column("description", sa.Text(), nullable=True, comment="For people, in their words."),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it was made.",
        ),
        sa.CheckConstraint("expires_at > effective_at", name=op.f("ck_grants_expires_after_its_start")),
        sa.PrimaryKeyConstraint("grant_id", name=op.f("pk_grants")),
        schema="quotas",
        comment="One row per grant: what a tenant paid or was given in advance. Never changed; what happens to it are movements.",
    )
    op.create_index("ix_grants_tenant_id", "grants", ["tenant_id"], unique=False, schema="quotas")
    op.create_table(
        "grant_movements",
        sa.Column("movement_id", sa.BigInteger(), sa.Identity(), nullable=False, comment="Order of recording."),
        sa.Column("grant_id", sa.Text(), nullable=False, comment="Which grant moves."),
        sa.Column(
            "kind",
            sa.Text(),
            nullable=False,
            comment="granted; adjusted by a person; revoked; expired: what was not burnt by its end; burnt: booked by an invoice.",
        ),
        sa.Column(
            "amount",
            sa.Numeric(),
            nullable=False,
            comment="Above zero adds; the movements sum to what is left on the books.",
        ),
        sa.Column(
            "key", sa.Text(), nullable=False, comment="The caller's: the same act under the same key is done once."
        ),
        sa.Column("posting_period", sa.Date(), nullable=True, comment="Of the invoice, for burnt."),
        sa.Column("actor", sa.Text(), nullable=False, comment="Who."),
        sa.Column("reason", sa.Text(), nullable=True, comment="Why, in the actor's words."),
        sa.Column(
            "at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When, by the database's clock.",
        ),
        sa.CheckConstraint(
            "kind in ('granted', 'adjusted', 'revoked', 'expired', 'burnt')",
            name=op.f("ck_grant_movements_kind_is_known"),
        ),
        sa.CheckConstraint(
            "case kind when 'granted' then amount > 0 when 'revoked' then amount < 0 when 'expired' then amount < 0"
            " else amount <> 0 end",
            name=op.f("ck_grant_movements_amount_has_its_sign"),
        ),
        sa.CheckConstraint(
            "(kind = 'burnt') = (posting_period is not null)", name=op.f("ck_grant_movements_burnt_has_its_period")
        ),
        sa.ForeignKeyConstraint(["grant_id"], ["quotas.grants.grant_id"], name=op.f("fk_grant_movements_grant_id")),
        sa.PrimaryKeyConstraint("movement_id", name=op.f("pk_grant_movements")),
        sa.UniqueConstraint("key", name=op.f("uq_grant_movements_key")),
        schema="quotas",
        comment="One row per movement of a grant; never changed.",
    )
    op.create_index("ix_grant_movements_grant_id", "grant_movements", ["grant_id"], unique=False, schema="quotas")


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.drop_table("grant_movements", schema="quotas")
    op.drop_table("grants", schema="quotas")
