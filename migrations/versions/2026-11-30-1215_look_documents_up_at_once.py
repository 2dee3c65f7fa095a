"""Look the documents of lines up once a statement, and not once a line.

Why: the foreign key of lines was half of what writing them took. The trigger that refuses additions to what is issued reads the
same documents, once for all lines of a statement, and now refuses a line without a document as well; documents are never deleted.
"""

from collections.abc import Sequence

from alembic import op

revision: str = "0032"
down_revision: str | None = "0031"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_NAME = "fk_document_lines_document_id"


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.drop_constraint(op.f(_NAME), "document_lines", schema="billing", type_="foreignkey")


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.create_foreign_key(
        op.f(_NAME),
        "document_lines",
        "documents",
        ["document_id"],
        ["document_id"],
        source_schema="billing",
        referent_schema="billing",
    )
