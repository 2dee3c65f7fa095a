"""`make bench NAME=...`: one benchmark by name."""

import asyncio
import importlib
import sys
from pathlib import Path

import uvloop

from tests.bench.harness import machine

NAMES = sorted(path.stem.removeprefix("bench_").replace("_", "-") for path in Path(__file__).parent.glob("bench_*.py"))


def main() -> int:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in NAMES:
        print(f"no benchmark {name!r}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    print(f"{name}: {machine()}", flush=True)
    bench = importlib.import_module(f"tests.bench.bench_{name.replace('-', '_')}")
    # The loop that a replica runs on, for both sides.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for comparison in runner.run(bench.run()):
            print(comparison.line(), flush=True)
    return 0


sys.exit(main())
