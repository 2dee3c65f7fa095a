"""The page for gateways says what works: its commands are run, in their order, against a real server."""

import json
import os
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.api.support import add_budget, make_key
from tests.api.test_server import served
from tests.factories import GATEWAY
from tests.support.ledger import Ledger

PAGE = Path(__file__).parent.parent.parent / "docs" / "for-gateways.md"


async def test_the_commands_of_the_page_do_what_it_says(ledger: Ledger) -> None:
    """120 x 2.00 and 256 x 8.00 a million are held; 100 and 10 are booked: 0.00028."""
    await ledger.add_price(input="2.00", output="8.00")
    add_budget(ledger)
    token = await make_key(ledger, source=GATEWAY)
    ask, extend, settle, void = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with served(ledger) as (_, address):
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")

        def run(command: str) -> Any:
            env = {**os.environ, "API": address, "TOKEN": token, "NOW": now}
            return json.loads(subprocess.run(["bash", "-c", command], env=env, capture_output=True, check=True).stdout)

        admitted = run(ask)
        assert (admitted["outcome"], admitted["state"]) == ("admitted", "held")
        assert [hold["held"] for hold in admitted["holds"]] == ["0.002288"]
        assert run(extend)["is_changed"]
        settled = run(settle)
        assert (settled["state"], settled["event"]["outcome"]) == ("settled", "created")
        assert run(ask.replace("op-1", "op-2"))["state"] == "held"
        assert run(void)["state"] == "voided"
    assert ledger.rows("select posted, held from quotas.windows where budget_id = 'b-1'") == [(ledger.total(), 0)]
    assert f"{ledger.total():f}".rstrip("0") == "0.00028"
