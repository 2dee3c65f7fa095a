"""A Faust worker with the settings of ours that only counts: what the framework and the broker leave at most."""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import faust

from ingest.app import WorkerConfig, make_app


def main() -> None:
    bootstrap, topic_name, wanted, folder = sys.argv[1:5]
    ours = make_app(WorkerConfig("", bootstrap, topic_name, topic_name, Path(folder), session_seconds=3)).conf
    app = faust.App(
        f"{topic_name}-counting",
        broker=ours.broker,
        datadir=folder,
        store="memory://",
        topic_allow_declare=False,
        topic_disable_leader=True,
        web_enabled=False,
        stream_wait_empty=False,
        stream_buffer_maxsize=ours.stream_buffer_maxsize,
        broker_max_poll_records=ours.broker_max_poll_records,
        consumer_max_fetch_size=ours.consumer_max_fetch_size,
        consumer_auto_offset_reset="earliest",
        broker_session_timeout=3,
        broker_heartbeat_interval=0.5,
        broker_rebalance_timeout=3,
    )
    topic = app.topic(topic_name, value_type=bytes, value_serializer="raw", acks=False)
    seen = {"count": 0, "started": 0.0}

    @app.agent(topic)
    async def count(stream: Any) -> None:
        async for events in stream.noack_take(5000, within=0.1):
            seen["started"] = seen["started"] or time.perf_counter()
            seen["count"] += len(events)
            if seen["count"] >= int(wanted):
                print("counted", seen["count"], time.perf_counter() - seen["started"], flush=True)
                asyncio.get_running_loop().call_later(0.1, os._exit, 0)

    worker: Any = app.Worker(loglevel="info", redirect_stdouts=False, override_logging=False)
    worker.execute_from_commandline()


if __name__ == "__main__":
    main()
