"""Who takes part: tenants, sources, models. Read whole into memory as a snapshot of one version."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date

from ledger.times import local_date_at


@dataclass(frozen=True, slots=True)
class TenantVersion:
    """What holds for a tenant from `effective_at` until the next version."""

    effective_at: int
    entity_id: str
    time_zone: str
    charge_currency: str
    status: str = "active"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A party that pays. Times are UTC microseconds; `ends_at` and `merged_at` are exclusive ends."""

    tenant_id: str
    starts_at: int
    versions: tuple[TenantVersion, ...]
    ends_at: int | None = None
    merged_into: str | None = None
    merged_at: int | None = None

    def at(self, instant: int) -> TenantVersion:
        """Return the version in force; before the first one, the first."""
        best = self.versions[0]
        for version in self.versions[1:]:
            if version.effective_at > instant:
                break
            best = version
        return best


@dataclass(frozen=True, slots=True)
class Source:
    """A registered sender, the tenants that it may speak for, and its rank: between two reports the higher counts."""

    source: str
    kind: str
    rank: int
    speaks_for_all: bool = False
    tenant_ids: frozenset[str] = frozenset()

    def may_speak_for(self, tenant_id: str) -> bool:
        return self.speaks_for_all or tenant_id in self.tenant_ids


@dataclass(frozen=True, slots=True)
class Model:
    """A model that we know, by its canonical id; counts above its limits are impossible."""

    provider: str
    model: str
    input_tokens_max: int | None = None
    output_tokens_max: int | None = None


@dataclass(frozen=True, slots=True)
class Parties:
    """All parties as of one version of `ledger.versions.parties`."""

    version: int
    tenants: Mapping[str, Tenant]
    sources: Mapping[str, Source]
    models: Mapping[tuple[str, str], Model] = field(default_factory=dict)
    """By (provider, canonical id or exact alias)."""

    def tenant_at(self, tenant_id: str, instant: int) -> Tenant | None:
        """Return who pays for usage of `tenant_id` at an instant: merges move the future, not the past."""
        tenant = self.tenants.get(tenant_id)
        while tenant is not None and tenant.merged_at is not None and instant >= tenant.merged_at:
            tenant = self.tenants.get(tenant.merged_into or "")
        return tenant

    def model(self, provider: str | None, name: str | None) -> Model | None:
        """Return the model of that exact id or alias, or None: nothing matches loosely."""
        return self.models.get((provider or "", name or ""))


@dataclass(frozen=True, slots=True)
class Period:
    """A tenant's month, half-open in the tenant's zone. Times are UTC microseconds."""

    posting_period: date
    starts_at: int
    ends_at: int
    grace_until: int
    is_closed: bool = False


@dataclass(frozen=True, slots=True)
class Calendar:
    """The periods of all tenants as of one version of `ledger.versions.calendar`."""

    version: int
    periods: Mapping[str, tuple[Period, ...]]
    """By tenant, in order of time."""

    def posting_period(self, tenant_id: str, occurred_at: int, recorded_at: int) -> date | None:
        """Return the first period, not before that of `occurred_at`, that still takes entries; None if there is none yet."""
        for period in self.periods.get(tenant_id, ()):
            if period.ends_at > occurred_at and not period.is_closed and period.grace_until > recorded_at:
                return period.posting_period
        return None


def local_date(tenant: Tenant, instant: int) -> date:
    """Return the day of an instant in the tenant's zone."""
    return local_date_at(tenant.at(instant).time_zone, instant)
