"""Give API keys scopes, an end and a last use, and let keys belong to operators.

Why: a key that may report usage must not be able to change prices or periods, so what a key may do stands on it; and whoever
administers over HTTP speaks neither for a tenant nor for a source.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0009"
down_revision: str | None = "0008"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_DEFAULT = "array['events:write', 'budgets:read', 'reservations:write', 'usage:read']::text[]"
_ALL = (
    "array['events:write', 'budgets:read', 'reservations:write', 'usage:read', 'budgets:write', 'grants:write',"
    " 'corrections:write', 'parties:write', 'periods:write', 'dead-letters:write', 'invoices:write',"
    " 'webhooks:write']::text[]"
)


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.add_column(
        "api_keys",
        sa.Column(
            "scopes",
            postgresql.ARRAY(sa.Text()),
            nullable=True,
            comment="What it may do, such as events:write. Those that change things for everybody are operators' keys' alone.",
        ),
        schema="ledger",
    )
    # Every key so far belongs to a tenant or a source.
    op.execute(f"update ledger.api_keys set scopes = {_DEFAULT}")
    op.alter_column("api_keys", "scopes", nullable=False, schema="ledger")
    op.add_column(
        "api_keys",
        sa.Column(
            "expires_at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=True,
            comment="From here on it opens nothing; null: it does not expire.",
        ),
        schema="ledger",
    )
    op.add_column(
        "api_keys",
        sa.Column(
            "last_used_at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=True,
            comment="When it was last used, as a process of the API wrote down up to a minute after; null: never.",
        ),
        schema="ledger",
    )
    op.drop_constraint(op.f("ck_api_keys_belongs_to_one"), "api_keys", schema="ledger")
    op.create_check_constraint(
        op.f("ck_api_keys_belongs_to_one_at_most"), "api_keys", "num_nonnulls(tenant_id, source) <= 1", schema="ledger"
    )
    op.create_check_constraint(
        op.f("ck_api_keys_scopes_are_known"),
        "api_keys",
        f"cardinality(scopes) > 0 and scopes <@ {_ALL}",
        schema="ledger",
    )
    op.create_check_constraint(
        op.f("ck_api_keys_only_operators_administer"),
        "api_keys",
        f"num_nonnulls(tenant_id, source) = 0 or scopes <@ {_DEFAULT}",
        schema="ledger",
    )
    op.execute(
        "comment on table ledger.api_keys is"
        " 'A credential belongs to one tenant, to one source, or, where it names neither, to an operator.'"
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    # It looks at the columns that go; `migrate` makes it again with whatever comes next.
    op.execute("drop trigger if exists tell_of_keys on ledger.api_keys")
    # What an operator's key opens is not there before this revision.
    op.execute("delete from ledger.api_keys where tenant_id is null and source is null")
    op.drop_constraint(op.f("ck_api_keys_only_operators_administer"), "api_keys", schema="ledger")
    op.drop_constraint(op.f("ck_api_keys_scopes_are_known"), "api_keys", schema="ledger")
    op.drop_constraint(op.f("ck_api_keys_belongs_to_one_at_most"), "api_keys", schema="ledger")
    op.create_check_constraint(
        op.f("ck_api_keys_belongs_to_one"), "api_keys", "num_nonnulls(tenant_id, source) = 1", schema="ledger"
    )
    op.drop_column("api_keys", "last_used_at", schema="ledger")
    op.drop_column("api_keys", "expires_at", schema="ledger")
    op.drop_column("api_keys", "scopes", schema="ledger")
    op.execute("comment on table ledger.api_keys is 'A credential belongs to one tenant, or to one source.'")
