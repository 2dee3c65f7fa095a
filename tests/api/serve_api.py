"""Serves the API for a test, as a process of its own: the configuration is JSON on the command line."""

import json
import sys

from api.config import Config
from api.server import serve

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    # JSON has no sets.
    given["second_person"] = frozenset(given["second_person"])
    serve(Config(**given), "127.0.0.1", 0, lambda port: print(port, flush=True))
