"""Who takes part: tenants, sources, models. Read whole into memory as a snapshot of one version."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Final

from ledger.model_names import NameRules, resolve
from ledger.times import local_date_at


@dataclass(frozen=True, slots=True)
class TenantVersion:
    """What holds for a tenant from `effective_at` until the next version."""

    effective_at: int
    entity_id: str
    time_zone: str
    charge_currency: str
    status: str = "active"
    first_day: date | None = None
    """No local day of it is before this one: that of `effective_at` by the clocks until then; None for the first version."""

    def local_date(self, instant: int) -> date:
        """Return the day of an instant.

        Where a zone changes and the clocks go back, the hours that they repeat belong to the day on which the change takes
        effect: days never go back, and a month is exactly its days.
        """
        day = local_date_at(self.time_zone, instant)
        return day if self.first_day is None or day >= self.first_day else self.first_day


@dataclass(frozen=True, slots=True)
class Tenant:
    """A party that pays. Times are UTC microseconds; `ends_at`, `merged_at` and `unmerged_at` are exclusive ends."""

    tenant_id: str
    starts_at: int
    versions: tuple[TenantVersion, ...]
    ends_at: int | None = None
    merged_into: str | None = None
    merged_at: int | None = None
    unmerged_at: int | None = None

    def is_merged_at(self, instant: int) -> bool:
        """Say whether usage of an instant that is sent as this tenant belongs to another."""
        if self.merged_at is None or instant < self.merged_at:
            return False
        return self.unmerged_at is None or instant < self.unmerged_at

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


_RESOLVED_MAX: Final = 50_000
"""Names come from outside and without end: what the rules made of them is kept within bounds."""


@dataclass(frozen=True, slots=True)
class Parties:
    """All parties as of one version of `ledger.versions.parties`."""

    version: int
    tenants: Mapping[str, Tenant]
    sources: Mapping[str, Source]
    models: Mapping[tuple[str, str], Model] = field(default_factory=dict)
    """By (provider, canonical id or exact alias)."""
    name_rules: Mapping[str, NameRules] = field(default_factory=dict)
    """By provider: what may stand around a known name."""
    own_accounts: Mapping[str, str] = field(default_factory=dict)
    """Provider accounts that belong to a tenant and not to us: account to tenant."""
    _resolved: dict[tuple[str, str], Model | None] = field(default_factory=dict, repr=False, compare=False)
    _folded: dict[str, dict[str, Model | None]] = field(default_factory=dict, repr=False, compare=False)

    def tenant_at(self, tenant_id: str, instant: int) -> Tenant | None:
        """Return who pays for usage of `tenant_id` at an instant: merges move the future, not the past."""
        tenant = self.tenants.get(tenant_id)
        passed: set[str] = set()
        while tenant is not None and tenant.is_merged_at(instant):
            if tenant.tenant_id in passed:
                # A circle of merges has nobody who pays; commands refuse to make one.
                return None
            passed.add(tenant.tenant_id)
            tenant = self.tenants.get(tenant.merged_into or "")
        return tenant

    def model(self, provider: str | None, name: str | None) -> Model | None:
        """Return the model of that exact id or alias, or of what the provider's rules lead to; nothing matches loosely."""
        key = (provider or "", name or "")
        found = self.models.get(key)
        if found is not None or not name or key[0] not in self.name_rules:
            return found
        if key in self._resolved:
            return self._resolved[key]
        if len(self._resolved) >= _RESOLVED_MAX:
            self._resolved.clear()
        folded = self._folded_names(key[0])
        found = resolve(name, self.name_rules[key[0]], lambda form: self.models.get((key[0], form)), folded.get)
        self._resolved[key] = found
        return found

    def _folded_names(self, provider: str) -> Mapping[str, Model | None]:
        """Return a provider's models by their names in lower case; None where two models would have the same."""
        if provider not in self._folded:
            folded: dict[str, Model | None] = {}
            for (of, name), model in self.models.items():
                if of == provider:
                    known = folded.setdefault(name.lower(), model)
                    if known is not model and known != model:
                        folded[name.lower()] = None
            self._folded[provider] = folded
        return self._folded[provider]


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
    retired: frozenset[date] = frozenset()
    """Months whose rows have left the ledger: what stands for their requests cannot be read any more."""

    def taking(self, tenant_id: str, recorded_at: int) -> tuple[list[int], list[date]]:
        """Return the periods that still take entries: their ends, ascending, and their names."""
        taking = [p for p in self.periods.get(tenant_id, ()) if not p.is_closed and p.grace_until > recorded_at]
        return [period.ends_at for period in taking], [period.posting_period for period in taking]

    def posting_period(self, tenant_id: str, occurred_at: int, recorded_at: int) -> date | None:
        """Return the first period, not before that of `occurred_at`, that still takes entries; None if there is none yet."""
        return first_period(self.taking(tenant_id, recorded_at), occurred_at)


def first_period(taking: tuple[Sequence[int], Sequence[date]], occurred_at: int) -> date | None:
    """Return the first of the periods that take entries which ends after an instant: `post` asks it for each entry."""
    ends, names = taking
    place = bisect_right(ends, occurred_at)
    return names[place] if place < len(names) else None


def local_date(tenant: Tenant, instant: int) -> date:
    """Return the local day of an instant."""
    return tenant.at(instant).local_date(instant)
