"""Add rules of names: hosting prefixes, version suffixes and case.

Why: what hosts put around a model's name is data that a person reviews, per provider and in order of precedence.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.create_table(
        "model_name_rules",
        sa.Column("provider", sa.Text(), nullable=False, comment="Whose names the rule is for."),
        sa.Column("place", sa.SmallInteger(), nullable=False, comment="Precedence: the lower one is tried first."),
        sa.Column(
            "kind",
            sa.Text(),
            nullable=False,
            comment="prefix: `text` may be left out; version_suffix: -v1 or -v1:0 may be; fold_case: capitals do not count.",
        ),
        sa.Column(
            "text", sa.Text(), server_default="", nullable=False, comment="The whole prefix; empty for other kinds."
        ),
        sa.Column(
            "recorded_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When the rule was set.",
        ),
        sa.CheckConstraint(
            "kind in ('prefix', 'version_suffix', 'fold_case')", name=op.f("ck_model_name_rules_kind_is_known")
        ),
        sa.CheckConstraint("(kind = 'prefix') = (text <> '')", name=op.f("ck_model_name_rules_prefix_has_its_text")),
        sa.CheckConstraint("place > 0", name=op.f("ck_model_name_rules_place_is_positive")),
        sa.PrimaryKeyConstraint("provider", "place", name=op.f("pk_model_name_rules")),
        sa.UniqueConstraint("provider", "kind", "text", name=op.f("uq_model_name_rules_provider_kind_text")),
        schema="ledger",
        comment="What may stand around the exact name of a model; a name that no rule leads to a known one is unpriced.",
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.drop_table("model_name_rules", schema="ledger")
