"""What a card's billing rules make of a call: refusals and disconnects that cost nothing, a tenant's own key, fees. Pure.

Each book follows the rules of its own card; a markup takes over the cost's, unless its card has its own. What a rule makes
free keeps its quantities, and its rate set says so: every price is zero, and `billing_rule` among the selectors names why.
"""

from collections.abc import Sequence
from typing import Final

from ledger.keys import key
from ledger.meters import output_tokens
from ledger.parties import Parties
from ledger.price_book import RateSet
from ledger.statements import DIMENSIONS, REFUSED_BEFORE_OUTPUT, Part, Statement

FEE: Final = b"fee"
"""Kind of the keys under which fees are booked, once for ever."""

_ACCOUNT: Final = DIMENSIONS.index("provider_account")
_STATUS: Final = DIMENSIONS.index("status")
_STOP_REASON: Final = DIMENSIONS.index("stop_reason")
_REFUSAL: Final = "refusal"
_DISCONNECTED: Final = frozenset({"cancelled", "interrupted"})


def rule_that_frees(
    rate_set: RateSet,
    dimensions: tuple[str | None, ...],
    parts: Sequence[Part],
    parties: Parties,
    part: Part | None = None,
) -> str | None:
    """Return the rule by which a call, or one part of it, costs nothing in the set's book, or None.

    A refusal before output is one of the whole call, none of whose parts has any output, or of a part that is marked as
    one: an attempt inside an answer that another model then gave. A disconnect counts whatever was
    delivered, and whether its usage is known or not. A key is the tenant's own where the provider account is its own.
    """
    rules = rate_set.billing_rules
    status = dimensions[_STATUS]
    if rules.get("refusal_before_output") == "free" and (
        (part is not None and REFUSED_BEFORE_OUTPUT in part.flags)
        or (
            (status == "refused" or dimensions[_STOP_REASON] == _REFUSAL)
            and not any(output_tokens(each.quantities or {}) for each in parts)
        )
    ):
        return "refusal_before_output"
    if rules.get("disconnect") == "free" and status in _DISCONNECTED:
        return "disconnect"
    if rules.get("own_key") == "free":
        owner = parties.own_accounts.get(dimensions[_ACCOUNT] or "")
        if owner is not None and owner in dimensions[:2]:
            return "own_key"
    return None


def fee_identity(statement: Statement, parties: Parties) -> str | None:
    """Return which logical request a report could owe a fee for, or None where it owes none.

    The operation, or the request where the gateway names none. A node does not know of operations: a report of its own
    without one must not make a second operation of the gateway's request. Only the final report of a call that is charged,
    and that neither failed nor was voided, owes anything.
    """
    if not (statement.claims_request and statement.is_final) or statement.status in ("error", "void", "in_progress"):
        return None
    if not any(part.is_chargeable for part in statement.parts):
        return None
    named = dict(zip(DIMENSIONS, statement.dimensions, strict=True))
    if named["operation_id"] is not None:
        return named["operation_id"]
    source = parties.sources.get(named["source"] or "")
    return None if source is None or source.kind == "node" else named["request_id"]


def fee_key(sent_tenant_id: str, book: str, operation: str) -> str:
    """Return the key of an operation's fee in a book: whoever reports which attempt first, it is booked once."""
    return key(FEE, sent_tenant_id, book, operation)
