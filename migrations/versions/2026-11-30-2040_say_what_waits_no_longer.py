"""Say in `parked` that nothing keeps a month back any more, as a row without reasons.

Why: what waits was told from the documents issued since. A month that turned out to hold nothing, or whose invoice is in another
currency now, waited for ever; and one that was issued, voided and refused again for the same reason was not listed.
"""

from collections.abc import Sequence

from alembic import op

revision: str = "0033"
down_revision: str | None = "0032"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_REASONS = "What keeps it from being issued, a line each"
_TABLE = "One row per refusal to issue that says something new"


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.drop_constraint(op.f("ck_parked_has_a_reason"), "parked", schema="billing", type_="check")
    op.execute(f"comment on column billing.parked.reasons is '{_REASONS}; none: nothing does any more.'")
    op.execute(f"comment on table billing.parked is '{_TABLE}, and per end of one.'")
    # What was issued after it was refused last.
    op.execute(
        """
        insert into billing.parked (tenant_id, posting_period, currency, reasons, actor, parked_at)
        select p.tenant_id, p.posting_period, p.currency, '{}', d.actor, d.issued_at
        from (
            select distinct on (tenant_id, posting_period, currency) tenant_id, posting_period, currency, parked_at
            from billing.parked
            order by tenant_id, posting_period, currency, parked_id desc
        ) as p
        cross join lateral (
            select d.actor, d.issued_at
            from billing.documents as d
            where
                d.tenant_id = p.tenant_id
                and d.posting_period = p.posting_period
                and d.kind = 'invoice'
                and d.currency = coalesce(p.currency, d.currency)
                and d.issued_at > p.parked_at
            order by d.issued_at
            limit 1
        ) as d
        """
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.execute("alter table billing.parked disable trigger user")
    op.execute("delete from billing.parked where cardinality(reasons) = 0")
    op.execute("alter table billing.parked enable trigger user")
    op.create_check_constraint(op.f("ck_parked_has_a_reason"), "parked", "cardinality(reasons) > 0", schema="billing")
    op.execute(f"comment on column billing.parked.reasons is '{_REASONS}.'")
    op.execute(f"comment on table billing.parked is '{_TABLE}; what was issued since waits no longer.'")
