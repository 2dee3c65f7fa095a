"""The oracle inside the test run: what agrees stays so, what differs is reviewed, and what is planted is found."""

from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ingest import counts
from ingest.counts import Counted
from ingest.flavours import FLAVOURS
from tests.oracle import run
from tests.oracle.corpus import Expectation, expectations, recordings
from tests.oracle.run import bill, faults, flavour_lines, judge_expectations, judge_recordings, reviewed

PAGE = Path(__file__).parents[2] / "ingest" / "flavours.md"


def test_nothing_of_the_corpus_is_unexplained() -> None:
    recorded, priced = judge_recordings(), judge_expectations()
    assert faults(recorded, priced) == []
    assert (len(recordings()), recorded.kinds["agrees"]) == (2381, 2360)
    assert (priced.rows, priced.kinds["agrees"]) == (3474, 3394)


def test_the_reviewed_table_names_a_rule_a_field_and_a_reason_once_each() -> None:
    assert all(len(rule.why) > 40 and rule.field and rule.rows > 0 for rule in reviewed())
    places = Counter((rule.provider, rule.api, rule.rule) for rule in reviewed())
    assert set(places.values()) == {1}


def test_the_page_holds_the_table_that_the_oracle_prints() -> None:
    assert "\n".join(flavour_lines()) in PAGE.read_text()


def test_every_flavour_was_read_from_a_recording_or_says_that_there_is_none() -> None:
    read = {name for name, recorded, _ in run.flavour_table() if recorded}
    assert {row.flavour for row in recordings()} <= FLAVOURS.keys()
    assert len(read) >= 30


@pytest.mark.parametrize(
    ("rule", "rows"),
    [
        # A cached token at both rates, reasoning on top of the output that holds it, counts cut at zero.
        ("cached_twice", 50),
        ("reasoning_twice", 300),
    ],
)
def test_a_planted_fault_is_found(rule: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults that real systems had make amounts that no reviewed row explains."""

    def billed(row: Expectation, counted: Counted) -> Any:
        quantities = dict(counted.quantities or {})
        if rule == "cached_twice":
            quantities["uncached_input_tokens"] = quantities.get("uncached_input_tokens", 0) + quantities.get(
                "cache_read_tokens", 0
            )
        else:
            quantities["visible_output_tokens"] = quantities.get("visible_output_tokens", 0) + quantities.get(
                "reasoning_tokens", 0
            )
        return bill(row, counts._changed(counted, quantities=quantities, calls=()))

    judged = judge_expectations(billed)
    assert judged.kinds["unexplained"] > rows
    assert faults(judge_recordings(), judged)


def test_what_providers_say_an_answer_cost_is_what_it_costs() -> None:
    """xAI states what it charges in ticks of 10^-10 dollars: reasoning lies beside the completion, and reads inside the prompt."""
    rows = [row for row in recordings() if row.flavour == "xai.chat" and row.provider == "xai" and row.frames]
    assert len(rows) == 4
    for row in rows:
        read = run.read_recording(row)
        assert isinstance(read, Counted)
        assert read.notes is not None
        expectation = Expectation(
            0, "x-ai", "chat", "grok-3-mini", row.flavour, {}, {}, Decimal(0), Decimal(0), Decimal(0), True
        )
        assert bill(expectation, read).amount == Decimal(read.notes["cost_in_usd_ticks"]).scaleb(-10), row
    assert expectations()
