"""Alembic's environment: one connection, the owner's rights, a lock timeout both ways."""

import sqlalchemy as sa
from alembic import context

from migrations.run import OWNER, tables

SCHEMAS = {"ledger", "quotas", "billing"}


def run() -> None:
    engine = sa.create_engine(context.config.attributes["url"], poolclass=sa.NullPool)
    with engine.connect() as connection:
        connection.execute(sa.text(f"set role {OWNER}"))
        connection.execute(sa.text("set lock_timeout = '10s'"))
        connection.commit()
        context.configure(
            connection=connection,
            target_metadata=tables(),
            include_schemas=True,
            include_name=lambda name, kind, _parents: kind != "schema" or name in SCHEMAS,
            version_table_schema="ledger",
            compare_type=True,
            compare_server_default=False,
        )
        with context.begin_transaction():
            context.run_migrations()


run()
