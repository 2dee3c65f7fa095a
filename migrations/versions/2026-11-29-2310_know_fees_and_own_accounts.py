"""Let entries be fees, and provider accounts belong to a tenant.

Why: a fee for each logical request is a row of its own, of its own kind; and a card may say that calls with the tenant's
own key cost nothing, which the account tells.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

# Partitions are made by `like`, so that the check is their own and not only inherited: it goes from each of them.
_REPLACE = """
do $$
declare
    partition regclass;
begin
    alter table ledger.entries drop constraint ck_entries_kind_is_known;
    for partition in select inhrelid::regclass from pg_inherits where inhparent = 'ledger.entries'::regclass loop
        execute format('alter table %s drop constraint if exists ck_entries_kind_is_known', partition);
    end loop;
    -- Reads every row under the lock: this revision comes before anybody has many.
    alter table ledger.entries add constraint ck_entries_kind_is_known check (kind in ({kinds}));
end
$$
"""


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.execute(_REPLACE.format(kinds="'usage', 'true_up', 'adjustment', 'reversal', 'evidence', 'fee'"))
    op.add_column(
        "provider_accounts",
        sa.Column(
            "tenant_id",
            sa.Text(),
            nullable=True,
            comment="The tenant whose own account it is, and who is billed for it; null: ours.",
        ),
        schema="ledger",
    )
    op.create_foreign_key(
        op.f("fk_provider_accounts_tenant_id"),
        "provider_accounts",
        "tenants",
        ["tenant_id"],
        ["tenant_id"],
        source_schema="ledger",
        referent_schema="ledger",
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.drop_constraint(op.f("fk_provider_accounts_tenant_id"), "provider_accounts", schema="ledger")
    op.drop_column("provider_accounts", "tenant_id", schema="ledger")
    op.execute(_REPLACE.format(kinds="'usage', 'true_up', 'adjustment', 'reversal', 'evidence'"))
