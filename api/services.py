"""What the routes call: one of each per app."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from starlette.requests import Request

from api.away import Away
from api.config import Config
from api.database import Operator, Reader
from api.encoded import Encoded
from api.gather import Gather, Kept
from api.group_commit import GroupCommit
from api.keys import KeyRing, KeyWatch
from api.metrics import Metrics
from api.reserving import Reserving
from api.watch import Watch
from ledger.api_keys import ApiKey, find_keys
from quotas.asks import Key, Reservation
from quotas.budgets import over_several_tenants
from quotas.remaining import Asked, InForce, TenantBudgets, remaining
from quotas.reservations import look_up


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of one app, made without touching the network."""

    config: Config
    metrics: Metrics
    watch: Watch
    reader: Reader
    reports: Reader
    operator: Operator
    keys: KeyRing
    key_watch: KeyWatch
    commits: GroupCommit
    reserving: Reserving
    budgets: Gather[Asked, TenantBudgets]
    encoded: Encoded
    standings: Gather[Key, Reservation]
    over_several_tenants: Kept[str, bool]

    @classmethod
    def of(cls, config: Config) -> "Services":
        metrics = Metrics()
        reader = Reader(config.api_url, config.read_connections)

        async def keys(key_ids: Sequence[str]) -> dict[str, ApiKey]:
            return await reader.run(lambda connection: find_keys(connection, key_ids))

        in_force = InForce()

        async def budgets(asked: Sequence[Asked]) -> dict[Asked, TenantBudgets]:
            return (await reader.run(lambda connection: remaining(connection, asked, in_force))).tenants

        async def standings(keys: Sequence[Key]) -> dict[Key, Reservation]:
            return await reader.run(lambda connection: look_up(connection, keys))

        async def over_several(budget_ids: Sequence[str]) -> dict[str, bool]:
            return await reader.run(lambda connection: over_several_tenants(connection, budget_ids))

        ring = KeyRing(Gather(keys).get, config.key_seconds, config.away_key_seconds)
        away = Away(None if config.journal is None else Path(config.journal), reader, metrics)
        return cls(
            config=config,
            metrics=metrics,
            watch=Watch(reader, metrics),
            reader=reader,
            reports=Reader(config.api_url, config.report_connections, config.report_seconds),
            operator=Operator(config.operator_url, config.operator_connections),
            keys=ring,
            key_watch=KeyWatch(ring, reader, config.api_url),
            commits=GroupCommit(config, metrics),
            reserving=Reserving(config, metrics, away),
            # Two, so that one half of the crowd is answered while the other is read for.
            budgets=Gather(budgets, flights_max=2),
            encoded=Encoded(),
            standings=Gather(standings),
            over_several_tenants=Kept(over_several),
        )


def services_of(request: Request) -> Services:
    return cast(Services, request.app.state.services)
