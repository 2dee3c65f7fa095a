"""Say of quotas.turns that corrections stand there too.

Why: what a correction gives back to a prepaid tenant is taken off its limit until its grants were looked at again.
"""

from collections.abc import Sequence

from alembic import op

revision: str = "0031"
down_revision: str | None = "0030"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_COMMENTS = (
    (
        "at",
        "When a grant begins or ends: from then on the limit must be set anew.",
        "When a grant begins or ends: from then on the limit must be set anew. 1970: a correction has given back.",
    ),
    (
        "lapses",
        "What grants that end then had left when the limit was set: taken off the limit from that instant on.",
        "Taken off the limit from then on: what grants that end then had left when it was set, or what was given back since.",
    ),
)


def upgrade() -> None:
    for column, before, after in _COMMENTS:
        op.alter_column("turns", column, comment=after, existing_comment=before, schema="quotas")


def downgrade() -> None:
    for column, before, after in _COMMENTS:
        op.alter_column("turns", column, comment=before, existing_comment=after, schema="quotas")
