"""What is replayed: files as messages, and files that cannot be."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ingest.replay import Plan, ReplayError, events_of, load_plan, packs, send

DATA = Path(__file__).parent.parent.parent / "data"
PLAN = DATA / "demo" / "plan.json"


@pytest.fixture
def plan() -> Plan:
    return load_plan(PLAN)


def test_events_travel_in_packs() -> None:
    assert list(packs([b"1", b"2", b"3"], 2)) == [(b"[1,2]", 2), (b"[3]", 1)]
    assert list(packs([b"1", b"2"], 1)) == [(b"1", 1), (b"2", 1)]
    assert list(packs([], 2)) == []


def test_a_line_that_is_no_json_travels_alone() -> None:
    """In an array, the string that never ends would take its neighbours along."""
    cut = b'{"specversion": "1.0", "type": "llm'
    assert list(packs([b"1", cut, b"2", b"\xff", b"3", b"4"], 100)) == [
        (b"[1]", 1), (cut, 1), (b"[2]", 1), (b"\xff", 1), (b"[3,4]", 2),
    ]  # fmt: skip


def test_a_pack_stays_below_what_a_broker_takes() -> None:
    wide = b'"' + b"x" * 400_000 + b'"'
    assert [count for _, count in packs([wide] * 5, 100)] == [2, 2, 1]


def test_a_file_that_cannot_be_replayed_is_named_with_the_rule(tmp_path: Path, plan: Plan) -> None:
    whole = (DATA / "azure-llm-2023" / "AzureLLMInferenceTrace_code.csv.gz").read_bytes()
    header = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
    for name, content, rule in (
        ("nothing.jsonl", None, "no such file"),
        ("other.csv", header, "the plan names no trace like it; it knows conv, code"),
        ("code.csv", b"", "the first line must be"),
        ("code-cut.csv.gz", whole[:20_000], "cannot be unpacked"),
        ("code-text.csv.gz", b"text", "cannot be unpacked"),
        ("code-torn.csv.gz", gzip.compress(b"")[:10] + b"\xff" * 9, "cannot be unpacked"),
        ("text.jsonl.gz", b"text", "cannot be unpacked"),
        ("code-date.csv", header + b"2023-13-16 18:17:03.9799600,1,1\n", "line 2: a time and two counts are wanted"),
        ("code-count.csv", header + b"2023-11-16 18:17:03.9799600,1,-1\n", "line 2: a time and two counts are wanted"),
        ("code-short.csv", header + b"2023-11-16 18:17:03.9799600,1\n", "line 2: a time and two counts are wanted"),
    ):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ReplayError, match=rule) as raised:
            list(events_of(path, plan))
        assert name in str(raised.value)


def test_a_file_of_events_is_sent_as_it_is(tmp_path: Path, plan: Plan) -> None:
    for name, pack in (("events.jsonl", bytes), ("events.jsonl.gz", gzip.compress)):
        path = tmp_path / name
        path.write_bytes(pack(b'{"a": 1}\n\n \xff\xfe\n{"b'))
        assert list(events_of(path, plan)) == [b'{"a": 1}', b"\xff\xfe", b'{"b']


def test_a_plan_leaves_nothing_open(tmp_path: Path) -> None:
    def changed(**fields: Any) -> bytes:
        return json.dumps({**json.loads(PLAN.read_bytes()), **fields}).encode()

    for content, rule in (
        (None, "No such file"),
        (b"not json", "malformed"),
        (b"{}", "missing required field"),
        (changed(tenants={}), "tenants needs weights"),
        (changed(tenants={"acme": 0}), "tenants needs weights"),
        (changed(tenants={"acme": 2, "globex": -1}), "tenants needs weights"),
        (changed(traces={"code": {"features": {"chat": 1}, "languages": {}, "models": {}}}), "languages of code needs"),
        (changed(flavours={}), "flavours must name one of openai.chat"),
        (
            changed(flavours=dict.fromkeys(["openai", "anthropic", "google", "vllm"], "no.flavour")),
            "flavours must name",
        ),
    ):
        path = tmp_path / "plan.json"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ReplayError, match=rule):
            load_plan(path)


def test_a_broker_that_is_not_there_is_named() -> None:
    with pytest.raises(ReplayError, match=r"the broker at 127\.0\.0\.1:1 does not answer"):
        send("127.0.0.1:1", "llm-usage", [(b"{}", 1)])
