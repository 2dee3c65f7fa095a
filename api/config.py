"""What the API is run with. It is read elsewhere and handed down."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Addresses, the replica's name, and limits."""

    writer_url: str = field(repr=False)
    """Postgres as tallystick_writer, for events."""
    api_url: str = field(repr=False)
    """Postgres as tallystick_api, for everything that is read."""
    operator_url: str | None = field(default=None, repr=False)
    """Postgres as tallystick_operator, for administration; None: this replica does none."""
    name: str
    """Names this replica's feed, `api:<name>`: one name, one process."""
    body_bytes_max: int = 4 * 1024 * 1024
    body_events_max: int = 10_000
    batch_events_max: int = 5_000
    """Events that one commit takes, about: a single body goes as one whatever it holds."""
    queue_events_max: int = 20_000
    queue_bytes_max: int = 64 * 1024 * 1024
    """An empty queue takes one body of any size that is read at all."""
    reservation_flushers: int = 2
    """Connections that decide, tenants shared out among them: one tenant's asks wait for each other and for few others'."""
    reservation_queue_max: int = 10_000
    """Asks that wait or are being decided."""
    reservation_batch_max: int = 1_000
    """Asks that one statement decides, and that one request may hold."""
    reservation_bytes_max: int = 2 * 1024 * 1024
    reservation_deadline_seconds: float = 2.0
    """How long a gateway waits for a decision before it is told to ask again."""
    reservation_lock_seconds: float = 0.5
    """How long a decision waits for a window that somebody else holds."""
    journal: str | None = None
    """File of what is admitted while the database is away, one for each replica; None: then nothing is."""
    away_key_seconds: float = 3600.0
    """How long after it was looked up last a key is believed while the database is away."""
    deadline_seconds: float = 10.0
    """How long a sender waits for the commit before it is told to send again."""
    patience_seconds: float = 5.0
    """How long one commit waits for a database that is away."""
    stuck_seconds: float = 30.0
    """A commit that takes longer makes the replica unready."""
    key_seconds: float = 3.0
    """How long a key is remembered, so how late a revocation is noticed by a replica that does not hear of it."""
    admin_bytes_max: int = 1024 * 1024
    """A larger body of an administrative request is refused."""
    read_connections: int = 4
    operator_connections: int = 4
    report_connections: int = 2
    """Apart from those, so that no report keeps a gateway waiting."""
    report_seconds: float = 10.0
    """A report that takes longer is refused."""
    grace_days: int = 3
    """Days in which late usage still enters a month that has ended, or was opened again."""
    months_ahead: int = 3
    """Months for which a new tenant gets periods."""
    second_person: frozenset[str] = frozenset()
    """Acts that take effect once a second person has agreed."""
    webhooks_allow_private: bool = False
    """Whether receivers of webhooks may be at private addresses, and without TLS."""
    fonts: Path | None = None
    """Folder of more fonts for printed documents."""
    page_tenants_max: int = 1_000
    page_rows_max: int = 1_000
    revision: str | None = None
    """The newest migration that this code knows; None skips the check."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a replica needs a name")
        if self.queue_events_max < self.body_events_max:
            raise ValueError("the queue must hold the events of at least one body")
