"""What can go wrong in the ledger.

LedgerError
├── Fenced                  another writer has claimed the feed
├── PositionLost            messages between two positions are gone
├── BatchTooLarge           a batch makes more rows than it can number
├── MonthMissing            a month has no partition to put entries in
├── StaleBooks              parties, prices or periods changed since the batch was made
├── CommitUnknown           (ledger.posting) the connection broke while committing
├── LogChanged              (ingest.lanes) a partition ends before what was posted of it
├── BatchRefused            (ingest.lanes) the database refuses a batch, and no single event explains it
└── ActRefused              a command asks for what the rules forbid
    ├── Unknown             a command names what is not there
    ├── AlreadyThere        a command adds what is there
    ├── RequestRetired      the rows of a request have left the ledger
    ├── CardRefused         a card breaks a rule of the price book
    ├── NodeRateRefused     what an hour of a node costs breaks a rule
    └── ExchangeRateRefused a rate between two currencies breaks a rule
"""

from datetime import date


class LedgerError(Exception):
    """The ledger refuses."""


class Fenced(LedgerError):
    """Another writer has claimed the feed."""

    def __init__(self, feed: str, ours: int, theirs: int) -> None:
        self.feed, self.ours, self.theirs = feed, ours, theirs
        super().__init__(f"feed {feed} was claimed by another writer: our epoch is {ours}, the feed's is {theirs}")


class PositionLost(LedgerError):
    """Messages between two positions are gone from the log before they were posted."""

    def __init__(self, feed: str, expected: int, first: int) -> None:
        self.feed, self.expected, self.first = feed, expected, first
        super().__init__(
            f"feed {feed} expects position {expected}, but the log now starts at {first}: positions {expected} to {first - 1} "
            f"are lost; `tallystick feeds start-here` accepts the loss, by name and reason"
        )


class BatchTooLarge(LedgerError):
    """A batch makes more rows than it can number."""

    def __init__(self, rows_max: int) -> None:
        self.rows_max = rows_max
        super().__init__(f"a batch can number {rows_max} rows, this one makes more; post it in parts")


class MonthMissing(LedgerError):
    """A month has no partition to put entries in; the batch is whole, and goes in once the partition is there."""

    def __init__(self, month: str) -> None:
        self.month = month
        super().__init__(
            f"{month} has no partition to put its entries in: the scheduler makes months ahead, and so does `tallystick period ahead`"
        )


class StaleBooks(LedgerError):
    """Parties, prices or periods changed since the batch was made; make it again."""


class ActRefused(LedgerError):
    """A command asks for what the rules forbid; the message says which rule."""


class Unknown(ActRefused):
    """A command names what is not there."""

    def __init__(self, what: str, name: str) -> None:
        self.what, self.name = what, name
        super().__init__(f"there is no {what} {name!r}")


class AlreadyThere(ActRefused):
    """A command adds what is there."""

    def __init__(self, what: str, name: str) -> None:
        self.what, self.name = what, name
        super().__init__(f"there is a {what} {name!r} already")


class RequestRetired(ActRefused):
    """The rows of a request have left the ledger: what stands of it cannot be corrected."""

    def __init__(self, request_key: str, month: date) -> None:
        self.request_key, self.month = request_key, month
        super().__init__(
            f"request {request_key} is of {month:%Y-%m}, whose rows have left the ledger: it cannot be corrected any more"
        )


class CardRefused(ActRefused):
    """A card breaks a rule of the price book; nothing of its load is kept."""

    def __init__(self, card: str, field: str, rule: str) -> None:
        self.card, self.field, self.rule = card, field, rule
        super().__init__(f"card {card}: {field} {rule}")


class NodeRateRefused(ActRefused):
    """What an hour of a node costs breaks a rule; nothing of its load is kept."""

    def __init__(self, rate: str, field: str, rule: str) -> None:
        self.rate, self.field, self.rule = rate, field, rule
        super().__init__(f"node rate {rate}: {field} {rule}")


class ExchangeRateRefused(ActRefused):
    """A rate between two currencies breaks a rule; nothing of its load is kept."""

    def __init__(self, rate: str, field: str, rule: str) -> None:
        self.rate, self.field, self.rule = rate, field, rule
        super().__init__(f"exchange rate {rate}: {field} {rule}")
