"""A node's windows over Kafka, beside usage and HTTP: kept once, whichever road they take."""

import asyncio
import json
from pathlib import Path

from ingest.replay import packs, send
from tallystick.embedded import EmbeddedBroker
from tallystick.verify import verify
from tests.api.support import make_key, outcomes, site
from tests.factories import NODE, event_bytes, make_event, make_window
from tests.stories.test_worker import seen, wait_for
from tests.support.ledger import Ledger
from tests.support.worker import WorkerProcess


async def test_windows_come_by_the_broker_and_by_http_and_are_kept_once(
    embedded_broker: EmbeddedBroker, ledger: Ledger, tmp_path: Path
) -> None:
    """An hour in sixty windows, each by both roads, among usage; one is over another, and one is broken."""
    await ledger.add_price(input="2.00", output="8.00")
    embedded_broker.create_topic("nodes", 1)

    def minute(number: int) -> dict[str, object]:
        return make_window(
            f"w-{number}",
            starts_at=f"2026-01-15T09:{number:02d}:00Z",
            ends_at=f"2026-01-15T09:{number + 1:02d}:00Z" if number < 59 else "2026-01-15T10:00:00Z",
        )

    windows = [minute(number) for number in range(60)]
    late = make_window("w-late", starts_at="2026-01-15T09:30:30Z", ends_at="2026-01-15T09:31:00Z")
    events = [
        *windows,
        late,
        make_window("w-bad", ends_at="2026-01-15T09:00:00Z"),
        *(make_event(f"e-{n}") for n in range(40)),
    ]
    sent = send(embedded_broker.bootstrap, "nodes", packs(map(event_bytes, events), 7))
    worker = WorkerProcess(
        tmp_path, writer_url=ledger.database.url_for("tallystick_writer"), bootstrap=embedded_broker.bootstrap,
        topic="nodes", group="nodes", session_seconds=3.0,
    )  # fmt: skip
    try:
        await asyncio.to_thread(wait_for, lambda: seen(ledger) == sent, 60, worker)
        token = await make_key(ledger, source=NODE)
        async with site(ledger) as here:
            assert outcomes(await here.send(json.dumps(windows).encode(), token=token)) == ["duplicate"] * 60
        assert worker.stop() == 0
    finally:
        worker.kill()
    assert ledger.rows("select count(*), sum(ends_at - starts_at)::text from ledger.node_windows") == [(60, "01:00:00")]
    assert ledger.value("select count(*) from ledger.entries") == 40
    assert ledger.rows("select reason from ledger.dead_letters order by 1") == [("bad_window",), ("window_overlaps",)]
    assert ledger.value("select next_position from ledger.feeds where kind = 'kafka'") == -(-sent // 7)
    assert verify(ledger.database.url_for("tallystick_operator")).ok
