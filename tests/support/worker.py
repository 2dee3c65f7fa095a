"""A worker process to be killed: started with exact settings, watched from outside, never asked nicely."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ingest.app import WorkerConfig, run
from tallystick import child

CHECKOUT = Path(__file__).parent.parent.parent


class WorkerProcess:
    """A worker in a process of its own, which ends with ours; its output goes to a file that a failing test can show."""

    def __init__(self, folder: Path, **config: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "worker.log"
        settings = asdict(WorkerConfig(folder=folder, **config)) | {"folder": str(folder)}
        starter = [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), str(int(signal.SIGKILL)), ""]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*starter, sys.executable, "-m", "tests.support.worker", json.dumps(settings)],
                cwd=CHECKOUT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self, seconds: float = 20) -> int:
        self.process.terminate()
        try:
            return self.process.wait(seconds)
        finally:
            self.process.kill()

    @property
    def said(self) -> str:
        return self.log.read_text()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    sys.exit(run(WorkerConfig(**{**given, "folder": Path(given["folder"])})))
