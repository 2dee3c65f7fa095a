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


R, A, Q, G, W, C = (
    "tests/api/test_reservations.py", "tests/api/test_admission.py", "tests/quotas/test_reservations.py",
    "tests/gateway/test_gateway.py", "tests/api/test_away.py", "tests/tallystick/test_cli_reservations.py",
)  # fmt: skip
HELD_BY: dict[str, list[tuple[str, str]]] = {
    "the budget has no room": [
        (R, "test_an_exhausted_budget_says_when_it_turns"),
        (R, "test_used_money_comes_back_with_the_window_and_a_lifetime_never"),
    ],
    "the price or the estimate is unknown": [
        (R, "test_what_a_budget_cannot_weigh_is_no_lack_of_money"),
        (Q, "test_without_an_estimate_the_budgets_policy_decides_b094"),
        (Q, "test_a_price_that_nobody_knows_is_refused_or_admitted_by_policy"),
    ],
    "the answer to an ask is lost": [
        (A, "test_a_commit_whose_answer_is_lost_on_the_wire_is_found_again"),
        (R, "test_the_same_ask_again_is_the_same_reservation"),
    ],
    "the answer to a settle is lost": [
        (A, "test_an_end_whose_answer_is_lost_on_the_wire_has_happened_once"),
        (R, "test_a_settle_with_its_event_closes_the_reservation_in_the_commit_that_posts_it"),
    ],
    "the API is killed with a full queue": [(A, "test_a_killed_server_has_told_nobody_yes_without_a_row")],
    "all replicas are gone": [(G, "test_budgets_that_cannot_be_asked_admit_nothing_and_reports_wait_on_the_disk")],
    "Postgres is away, budget says `refuse`": [
        (A, "test_postgres_away_and_back_costs_answers_and_nothing_else"),
        (W, "test_a_budget_that_refuses_while_away_refuses_for_all"),
    ],
    "Postgres is away, budget says `admit`": [
        (W, "test_an_allowance_admits_so_much_and_is_booked"),
        (W, "test_what_is_booked_above_the_limit_is_told_by_its_cause"),
    ],
    "too many callers": [
        (R, "test_a_full_queue_pushes_back"),
        (R, "test_a_deadline_leaves_the_outcome_open_and_the_same_ask_finds_it"),
    ],
    "prices or parties change meanwhile": [(R, "test_prices_that_changed_are_the_ones_that_count")],
    "the model fails before an answer": [(G, "test_a_model_that_fails_is_tried_again_under_the_same_reservation")],
    "nobody upstream was reached": [(G, "test_a_model_that_nobody_reached_gives_the_reservation_back")],
    "the stream breaks off": [
        (G, "test_an_interrupted_stream_is_estimated_and_continued_and_the_nodes_word_corrects_it")
    ],
    "the caller leaves": [(G, "test_a_caller_that_leaves_ends_the_call_and_pays_about_what_it_got")],
    "the gateway dies in a call": [
        (Q, "test_a_hold_expires_when_the_feeds_are_past_it"),
        (Q, "test_evidence_closes_and_a_duplicate_does_not"),
    ],
    "the worker is down for an hour": [
        (Q, "test_a_call_that_ended_waits_for_its_entry"),
        (Q, "test_a_hold_expires_when_the_feeds_are_past_it"),
    ],
    "the call was said to have ended, and its usage never comes": [
        (C, "test_a_person_releases_what_awaits_an_entry_for_good"),
    ],
    "usage comes for an expired or voided hold": [(Q, "test_the_excess_says_why")],
    "the call used more than was held": [(Q, "test_the_excess_says_why")],
}
"""What holds each row of the page's last table."""


def test_each_row_of_what_fails_is_held_by_a_test() -> None:
    table = PAGE.read_text().partition("## When something fails")[2]
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][2:]
    assert rows == list(HELD_BY)
    root = PAGE.parent.parent
    gone = [
        f"{path}::{name}"
        for tests in HELD_BY.values()
        for path, name in tests
        if f"def {name}(" not in (root / path).read_text()
    ]
    assert gone == []


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
