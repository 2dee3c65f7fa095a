"""Let a line of a credit note name the line that it gives back, and let keys read invoices.

Why: what is left of a line of an invoice is what no credit note gave back; and a tenant's own key may read its documents, so the
scope for it is one of those that a tenant's key can have.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0029"
down_revision: str | None = "0028"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_TENANTS_BEFORE = ("events:write", "budgets:read", "reservations:write", "usage:read")
_OTHERS = (
    "budgets:write",
    "grants:write",
    "corrections:write",
    "parties:write",
    "periods:write",
    "dead-letters:write",
    "invoices:write",
    "webhooks:write",
)


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.add_column(
        "document_lines",
        sa.Column(
            "corrects_line_no", sa.Integer(), comment="Of a credit note: the line of the invoice that it gives back."
        ),
        schema="billing",
    )
    _set_scopes((*_TENANTS_BEFORE, "invoices:read"))


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.execute(
        "update ledger.api_keys set scopes = array_remove(scopes, 'invoices:read') where scopes <> '{invoices:read}'"
    )
    op.execute("update ledger.api_keys set scopes = '{usage:read}' where scopes = '{invoices:read}'")
    _set_scopes(_TENANTS_BEFORE)
    op.drop_column("document_lines", "corrects_line_no", schema="billing")


def _set_scopes(of_tenants: Sequence[str]) -> None:
    def listed(scopes: Sequence[str]) -> str:
        return "array[" + ", ".join(f"'{scope}'" for scope in scopes) + "]::text[]"

    for name, rule in (
        ("scopes_are_known", f"cardinality(scopes) > 0 and scopes <@ {listed((*of_tenants, *_OTHERS))}"),
        ("only_operators_administer", f"num_nonnulls(tenant_id, source) = 0 or scopes <@ {listed(of_tenants)}"),
    ):
        op.drop_constraint(op.f(f"ck_api_keys_{name}"), "api_keys", schema="ledger")
        op.create_check_constraint(op.f(f"ck_api_keys_{name}"), "api_keys", rule, schema="ledger")
