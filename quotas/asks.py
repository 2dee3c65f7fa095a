"""Asks and what is answered: the values that callers of reservations give and get."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any, ClassVar, Final, Literal

import msgspec

from ledger.meters import METERS, Quantities
from quotas.errors import AskRefused
from quotas.estimates import Basis
from quotas.known import Fit
from quotas.remaining import Span, span

Outcome = Literal["admitted", "degraded", "refused", "conflict"]
State = Literal["held", "awaiting_entry", "settled", "voided", "expired"]
Reason = Literal["limit", "unknown_price", "missing_estimate", "conflict", "unknown_tenant", "inactive_tenant"]

ID_LENGTH_MAX: Final = 255
TTL_SECONDS_MAX: Final = 86_400
HOLD_SECONDS: Final = 5
"""When to ask again where nothing but holds is in the way: they go with the calls that they are for, in seconds."""


_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode


class Ask(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """May this call go ahead? Of input, output, quantities and amounts the caller gives what it knows.

    Units: amounts in the tenant's currency (`charge`) or `cost_currency`; counts in tokens, quantities by meter.
    """

    tenant_id: str
    """As the usage event will name it: with the id, the key of the reservation."""
    reservation_id: str
    """The caller's own, made before the first try: asked again with the same content, the answer is what became of it."""
    operation_id: str | None = None
    basis: Basis = "worst_case"
    input_tokens: int | None = None
    """Counted, or for `expected` the caller's estimate."""
    output_tokens: int | None = None
    """The cap that the call is sent with, or for `expected` the caller's estimate."""
    quantities: Mapping[str, int] | None = None
    """The caller's own counts by meter, in place of the two above."""
    charge: Decimal | None = None
    cost: Decimal | None = None
    cost_currency: str | None = None
    provider: str | None = None
    provider_account: str | None = None
    deployment: str | None = None
    model: str | None = None
    """As it will be requested: an exact id or alias, as in usage events."""
    service_tier: str | None = None
    region: str | None = None
    feature: str | None = None
    route: str | None = None
    lane: str | None = None
    """`batch` may not touch what a budget reserves for the interactive lane."""
    api_key_id: str | None = None
    user_hash: str | None = None
    tags: Mapping[str, str] = {}
    ttl_seconds: int = 600
    """After so long without a word the hold may expire: longer than the call can take."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def content_hash(self) -> str:
        """What tells a repeated ask from another one under the same id."""
        # Without the dashes, which Postgres puts in where it prints it.
        return sha256(_encode_sorted(self)).hexdigest()[:32]


def _check(ask: Ask) -> None:
    """Raise AskRefused for the first rule that an ask breaks."""
    if not ask.tenant_id:
        raise AskRefused("tenant_id", "is empty")
    _check_id(ask.reservation_id)
    for name, count in (("input_tokens", ask.input_tokens), ("output_tokens", ask.output_tokens)):
        if count is not None and not 0 <= count < 2**53:
            raise AskRefused(name, f"is {count}; it takes a count that is not negative")
    check_amounts(ask)
    if not 1 <= ask.ttl_seconds <= TTL_SECONDS_MAX:
        raise AskRefused("ttl_seconds", f"is {ask.ttl_seconds}; it takes 1 to {TTL_SECONDS_MAX}")


def check_amounts(ask: Ask) -> None:
    """Raise AskRefused where quantities and amounts that are stated break a rule, or do not go together."""
    if ask.quantities is not None:
        if ask.input_tokens is not None or ask.output_tokens is not None:
            raise AskRefused("quantities", "stand beside input_tokens or output_tokens; give one or the other")
        _check_quantities(ask.quantities)
    for name, amount in (("charge", ask.charge), ("cost", ask.cost)):
        if amount is not None and (not amount.is_finite() or amount < 0):
            raise AskRefused(name, f"is {amount}; it takes an amount that is finite and not negative")
    if (ask.cost is None) != (ask.cost_currency is None):
        raise AskRefused("cost_currency", "goes with cost, and cost with it")


def _check_id(reservation_id: str) -> None:
    if not 0 < len(reservation_id) <= ID_LENGTH_MAX or "\0" in reservation_id:
        raise AskRefused("reservation_id", f"takes 1 to {ID_LENGTH_MAX} characters without a zero byte")


def _check_quantities(quantities: Quantities) -> None:
    for meter, count in quantities.items():
        if meter not in METERS:
            raise AskRefused("quantities", f"name {meter!r}, which is no meter")
        if not 0 <= count < 2**53:
            raise AskRefused(f"quantities.{meter}", f"is {count}; it takes a count that is not negative")


class Hold(msgspec.Struct, frozen=True, gc=False):
    """What is held of one budget for a reservation, in the window that was in force at the decision. Amounts are decimal text."""

    budget_id: str
    group_key: str
    window_start: date
    unit: str
    currency: str | None
    reserved: str
    """As decided; what is still held is in `held`."""
    held: str


class Tightest(msgspec.Struct, frozen=True, gc=False):
    """The budget that has the least left in proportion to what was asked of it: the first that more such calls would meet."""

    budget_id: str
    group_key: str
    unit: str
    currency: str | None
    hardness: str
    window: Span
    limit: str | None
    """What holds for this lane: without the interactive reserve for `batch`."""
    asked: str | None
    """What the call would have taken; None where nobody knows."""
    remaining: str | None
    """limit - posted - held after this decision; below zero where it was overrun."""

    @property
    def untold(self) -> "Tightest":
        """The same, for somebody who may not know what others use."""
        return msgspec.structs.replace(self, limit=None, remaining=None)


class Decision(msgspec.Struct, frozen=True, gc=False):
    """What became of an ask. Whatever is admitted or degraded is held against every budget in `holds`, or against none."""

    tenant_id: str
    reservation_id: str
    outcome: Outcome
    state: State | None = None
    """Where the reservation stands; None where none is kept, as after a refusal, which is decided anew when asked again."""
    reason: Reason | None = None
    tightest: Tightest | None = None
    """None where no budget limits, and for what is answered from an earlier decision."""
    holds: tuple[Hold, ...] = ()
    route: str | None = None
    """Degraded: where the call may go instead."""
    output_tokens_max: int | None = None
    """Degraded: the cap that the call has to be sent with."""
    retry_at: datetime | None = None
    """Refused: when asking again may be answered otherwise; None where waiting alone would never help."""
    expires_at: datetime | None = None
    decided_at: datetime | None = None
    is_replay: bool = False
    """Whether this was decided earlier, under the same id."""

    @property
    def is_admitted(self) -> bool:
        return self.outcome in ("admitted", "degraded")


class Admission(msgspec.Struct, frozen=True, gc=False):
    """Admitted as it was asked, by budgets that were known: a decision that is not written out yet."""

    tenant_id: str
    reservation_id: str
    fit: Fit
    texts: tuple[str, ...]
    """What is held of each of its budgets."""
    tightest: tuple[int, str] | None
    """Which of them, and what remains of it."""
    expires_at: datetime
    decided_at: datetime
    outcome: ClassVar[Outcome] = "admitted"
    state: ClassVar[State] = "held"
    is_admitted: ClassVar[bool] = True
    is_replay: ClassVar[bool] = False

    def written_out(self) -> Decision:
        matches = self.fit.matches
        named = None
        if self.tightest is not None:
            place, left = self.tightest
            match = matches[place]
            assert match.limit is not None, "what has no limit is not the tightest"
            window = span(match.kind, match.days, match.anchor, match.window_start, match.zone)
            named = Tightest(
                match.budget_id, match.group_key, match.unit, match.currency, match.hardness, window, match.limit,
                self.texts[place], left,
            )  # fmt: skip
        holds = [
            Hold(match.budget_id, match.group_key, match.window_start, match.unit, match.currency, text, text)
            for match, text in zip(matches, self.texts, strict=True)
        ]
        return Decision(
            self.tenant_id, self.reservation_id, "admitted", "held", None, named, tuple(holds), None, None, None,
            self.expires_at, self.decided_at,
        )  # fmt: skip


Decided = Decision | Admission


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """A reservation as it stands."""

    tenant_id: str
    reservation_id: str
    state: State
    operation_id: str | None
    basis: str
    route: str | None
    lane: str | None
    input_tokens: int | None
    output_tokens: int | None
    step: Mapping[str, Any] | None
    """The step down that it was admitted by: where the call may go instead, and with which cap."""
    decided_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    """When the call was said to have ended, or when the hold went."""
    holds: tuple[Hold, ...]


class Settlement(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The call has ended, and its usage will come as an event: what is held stays, or as much of it as is stated here."""

    tenant_id: str
    reservation_id: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    charge: Decimal | None = None
    cost: Decimal | None = None

    def __post_init__(self) -> None:
        _check_id(self.reservation_id)
        for name, amount in (("charge", self.charge), ("cost", self.cost)):
            if amount is not None and (not amount.is_finite() or amount < 0):
                raise AskRefused(name, f"is {amount}; it takes an amount that is finite and not negative")
        for name, count in (("input_tokens", self.input_tokens), ("output_tokens", self.output_tokens)):
            if count is not None and not 0 <= count < 2**53:
                raise AskRefused(name, f"is {count}; it takes a count that is not negative")


class Change(msgspec.Struct, frozen=True, gc=False):
    """What became of a wish to settle, void or extend: where the reservation stands now, and whether this moved it."""

    tenant_id: str
    reservation_id: str
    state: State | None
    """None: there is no such reservation."""
    is_changed: bool
    expires_at: datetime | None = None
    holds: tuple[Hold, ...] = ()


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did: how many holds it let go, and up to when the feeds are posted; without that nothing expires."""

    expired_count: int
    watermark: datetime | None


Key = tuple[str, str]
"""(tenant as the ask named it, reservation id)."""
