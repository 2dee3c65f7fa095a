"""The event contract: bytes to checked statements. Ids in names are cases of the issue."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.contents import CONTENT_HASH_VERSION, canonical_content
from ingest.flavours import FLAVOURS
from ingest.languages import language_of
from ingest.refusals import REASONS
from ingest.usage_events import (
    Speaker,
    event_bodies,
    event_ids,
    events_json_schema,
    read_events,
    read_ndjson,
)
from ingest.wire import TEXT_MAX, UsageEvent, decode_event
from ledger.keys import event_key, request_key
from ledger.parties import Model, Parties, Source
from ledger.posting import CONTENT_HASH_VERSION as POSTED_HASH_VERSION
from ledger.statements import DIMENSIONS, DeadLetter, Item, Part, Refused, Statement, Window
from ledger.times import parse_rfc3339
from tests import factories
from tests.factories import GATEWAY, NODE, NOW, TENANT, event_bytes, make_event, make_parties, make_tenant
from tests.support.soak import examples

PARTIES = make_parties()


def read(
    *events: dict[str, Any], parties: Parties = PARTIES, at: int = NOW, speaker: Speaker | None = None
) -> list[Item]:
    return read_events(factories.event_bytes(*events), parties, at, speaker)


def statement(
    event: dict[str, Any] | bytes, parties: Parties = PARTIES, at: int = NOW, speaker: Speaker | None = None
) -> Statement:
    body = event if isinstance(event, bytes) else factories.event_bytes(event)
    (item,) = read_events(body, parties, at, speaker)
    assert isinstance(item, Statement), item
    return item


def reason(item: Item) -> str | None:
    return item.refused.reason if isinstance(item, DeadLetter) else None


def part(item: Item) -> Part:
    assert isinstance(item, Statement), item
    (only,) = item.parts
    return only


def dimension(item: Item, name: str) -> str | None:
    assert isinstance(item, Statement), item
    return item.dimensions[DIMENSIONS.index(name)]


def node_event(event_id: str = "n-1", **overrides: Any) -> dict[str, Any]:
    return make_event(
        event_id, **{"source": NODE, "provider": "vllm", "model": "m-vllm", "flavour": "vllm.chat", **overrides}
    )


def window_event(**overrides: Any) -> dict[str, Any]:
    data = {
        "tenant_id": TENANT,
        "node_id": "gpu-7",
        "starts_at": "2026-01-15T09:59:00Z",
        "ends_at": "2026-01-15T10:00:00Z",
        "gpu_count": 8,
        "kv_token_seconds": 45699,
        **overrides,
    }
    return {"specversion": "1.0", "id": "w-1", "source": NODE, "type": "gpu.node.window.v1", "data": data}


# --- Statements ------------------------------------------------------------------------------------------------------


def test_an_event_becomes_a_statement() -> None:
    read_statement = statement(
        make_event(tags={"team": "search"}, lane="batch", attempt=2, user_hash="u-1", latency_ms=812)
    )
    assert read_statement.event_key == event_key(TENANT, GATEWAY, "ev-1")
    assert read_statement.request_key == request_key(TENANT, "req-ev-1")
    assert read_statement.rank == (0, 1, 1, 1, 20, 0)
    assert read_statement.occurred_at == parse_rfc3339("2026-01-15T10:00:00Z")
    assert read_statement.parts == (
        Part("m-sub", "m-sub", {"uncached_input_tokens": 100, "visible_output_tokens": 10}),
    )
    assert (read_statement.tags, read_statement.attempt) == ({"team": "search"}, 2)
    assert (read_statement.subject_hash, read_statement.latency_ms) == ("u-1", 812)
    assert read_statement.raw_usage == b'{"completion_tokens":10,"prompt_tokens":100,"total_tokens":110}'
    assert read_statement.refused_if_new is None


def test_each_dimension_stands_in_its_place() -> None:
    stated = {
        name: f"a-{name}"
        for name in DIMENSIONS
        if name not in {"tenant_id", "sent_tenant_id", "source", "sent_language", "language", "reported_model", "model"}
        and name not in {"attempt_kind", "lane", "status", "cache_result", "basis"}
    }
    event = make_event(
        **stated, model="a-model", attempt_kind="hedge", lane="batch", status="cancelled", cache_result="prefix_hit",
        basis="estimated", language="zh_hant_TW",
    )  # fmt: skip
    assert dict(zip(DIMENSIONS, statement(event).dimensions, strict=True)) == {
        **stated,
        "tenant_id": TENANT,
        "sent_tenant_id": TENANT,
        "source": GATEWAY,
        "reported_model": "a-model",
        "model": None,
        "attempt_kind": "hedge",
        "lane": "batch",
        "status": "cancelled",
        "cache_result": "prefix_hit",
        "basis": "estimated",
        "language": "zh-Hant",
        "sent_language": "zh_hant_TW",
    }


def test_b014_a_finished_stream_without_usage_is_missing_and_never_zero() -> None:
    event = node_event(usage=None)
    missing = statement(event)
    assert (part(missing).quantities, part(missing).flags) == (None, ("usage_missing",))
    recovered = statement(
        node_event(
            "n-2", request_id="req-n-1", usage={"prompt_tokens": 500, "completion_tokens": 120, "total_tokens": 620}
        )
    )
    assert recovered.request_key == missing.request_key
    assert recovered.rank > missing.rank


def test_b015_the_final_snapshot_ranks_above_those_before_it() -> None:
    snapshots = [
        statement(make_event(f"msg-1#{n}", request_id="msg-1", sequence=n, final=n == 3, flavour="anthropic.messages",
                             provider="anthropic", model="m-add", usage={"input_tokens": 900, "output_tokens": output}))
        for n, output in ((1, 1), (2, 35), (3, 412))
    ]  # fmt: skip
    assert len({s.request_key for s in snapshots}) == 1
    assert max(snapshots, key=lambda s: s.rank) is snapshots[2]
    assert part(snapshots[2]).quantities == {"uncached_input_tokens": 900, "visible_output_tokens": 412}
    assert [s.is_final for s in snapshots] == [False, False, True]


def test_b018_what_the_provider_reports_ranks_above_an_estimate() -> None:
    estimated = statement(make_event("ev-1", request_id="req-5", status="cancelled", basis="estimated"))
    reported = statement(make_event("ev-2", request_id="req-5", status="cancelled", final=True))
    assert estimated.request_key == reported.request_key
    assert reported.rank > estimated.rank
    assert part(estimated).quantities is not None
    assert dimension(estimated, "basis") == "estimated"


def test_b019_an_interim_report_is_not_final() -> None:
    interim = statement(node_event("n-1", request_id="req-6", status="cancelled", final=False))
    final = statement(node_event("n-2", request_id="req-6", status="cancelled", final=True))
    assert final.rank > interim.rank
    assert "cache_unknown" in part(interim).flags


def test_b073_each_upstream_request_has_a_key_of_its_own() -> None:
    first, second, again = read(
        make_event("m1/r1", request_id="up-1"),
        make_event("m1/r2", request_id="up-2"),
        make_event("m1/r2", request_id="up-2"),
    )
    assert isinstance(first, Statement)
    assert isinstance(second, Statement)
    assert isinstance(again, Statement)
    assert first.event_key != second.event_key == again.event_key
    assert first.request_key != second.request_key == again.request_key
    assert second.content_hash == again.content_hash != first.content_hash


def test_b080_counts_above_two_to_the_31st_are_read() -> None:
    usage = {"prompt_tokens": 3_000_000_000, "completion_tokens": 0, "total_tokens": 3_000_000_000}
    read_statement = statement(make_event(usage=usage, model="m-bulk"))
    assert part(read_statement).quantities == {"uncached_input_tokens": 3_000_000_000}


def test_b082_impossible_counts_cost_their_neighbours_nothing() -> None:
    def sent(event_id: str, usage: dict[str, Any]) -> dict[str, Any]:
        return make_event(event_id, usage=usage)

    items = read(
        sent("i1", {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 150}, "completion_tokens": 10}),
        sent("i2", {"prompt_tokens": 100, "completion_tokens": -50}),
        sent("i3", {"prompt_tokens": 10.5, "completion_tokens": 1}),
        sent("i4", {"prompt_tokens": 100, "completion_tokens": 10}),
    )
    assert [reason(item) for item in items] == ["part_above_whole", "not_a_count", "not_a_count", None]
    assert part(items[3]).quantities == {"uncached_input_tokens": 100, "visible_output_tokens": 10}


def test_b085_a_nul_in_a_label_costs_nobody_else_anything() -> None:
    events = [make_event(f"ev-{n}", feature="chat\0bot" if n == 57 else "chat") for n in range(100)]
    items = read(*events)
    assert [n for n, item in enumerate(items) if isinstance(item, DeadLetter)] == [57]
    letter = items[57]
    assert isinstance(letter, DeadLetter)
    assert letter.refused.reason == "nul_in_text"
    assert json.loads(letter.body) == events[57]


def test_b086_a_lone_surrogate_is_set_aside_twice_alike() -> None:
    body = factories.event_bytes(make_event("a"), make_event("b", feature="x\ud835y"), make_event("c"))
    first, second = (read_events(body, PARTIES, NOW) for _ in range(2))
    assert [reason(item) for item in first] == [None, "lone_surrogate", None]
    assert first == second


def test_a_whole_surrogate_pair_is_a_character() -> None:
    body = factories.event_bytes(make_event(feature="x\U0001d7d3y"))
    assert b"\\ud835\\udfd3" in body
    assert dimension(statement(body), "feature") == "x\U0001d7d3y"


@pytest.mark.parametrize(
    "spelling", ["claude-x-5", "anthropic/claude-x-5", "Claude-X-5", "openrouter/anthropic/Claude-X-5"]
)
def test_b112_listed_spellings_of_a_model_are_one(spelling: str) -> None:
    model = Model("anthropic", "claude-x-5")
    aliases = ["claude-x-5", "anthropic/claude-x-5", "Claude-X-5", "openrouter/anthropic/Claude-X-5"]
    parties = make_parties(models=[(alias, model) for alias in aliases])
    read_statement = statement(make_event(provider="anthropic", model=spelling), parties)
    assert part(read_statement).model == dimension(read_statement, "model") == "claude-x-5"
    assert part(read_statement).reported_model == dimension(read_statement, "reported_model") == spelling


def test_a_spelling_that_is_not_listed_is_nobodys_and_is_posted() -> None:
    read_statement = statement(make_event(model="M-SUB"))
    assert part(read_statement).model is None
    assert part(read_statement).is_priceable


def test_the_requested_model_stands_in_where_none_is_reported() -> None:
    assert part(statement(make_event(model=None))).model == "m-sub"


# --- Time ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "outcome"),
    [
        ({"time": "2026-01-01T00:00:00Z"}, "2026-01-01T00:00:00Z"),
        ({"time": ..., "time_unix": 1767225600, "time_unit": "s"}, "2026-01-01T00:00:00Z"),
        ({"time": ..., "time_unix": 1767225600000, "time_unit": "ms"}, "2026-01-01T00:00:00Z"),
        ({"time": ..., "time_unix": 1767225600000, "time_unit": "s"}, "bad_time"),
        ({"time": ..., "time_unix": 1767225600, "time_unit": "ms"}, "time_too_early"),
        ({"time": ..., "time_unix": 1767225600}, "bad_time"),
        ({"time": 1767225600}, "wrong_type"),
        ({"time": "2026-01-01T00:00:00"}, "bad_time"),
        ({"time": "2026-02-30T00:00:00Z"}, "bad_time"),
        ({"time": "9999-12-31T23:59:59-14:00"}, "bad_time"),
        ({"time": ...}, "missing_time"),
    ],
)
def test_b134_seconds_are_not_milliseconds(stated: dict[str, Any], outcome: str) -> None:
    (item,) = read(make_event(**stated), at=parse_rfc3339("2026-01-01T00:05:00Z"))
    if isinstance(item, DeadLetter):
        assert item.refused.reason == outcome
    elif isinstance(item, Statement) and item.refused_if_new is not None:
        assert item.refused_if_new.reason == outcome
    else:
        assert isinstance(item, Statement)
        assert item.occurred_at == parse_rfc3339(outcome)


@pytest.mark.parametrize(
    ("time", "refused_if_new"),
    [
        ("2026-01-31T23:59:20Z", None),
        ("2026-02-01T00:01:00Z", None),
        ("2026-02-01T00:02:59.999999Z", None),
        ("2026-02-01T00:03:00Z", None),
        ("2026-02-01T00:03:00.000001Z", "time_in_future"),
        ("2026-02-01T00:03:01Z", "time_in_future"),
        ("2027-01-01T00:00:00Z", "time_in_future"),
        ("2019-12-31T23:59:59.999999Z", "time_too_early"),
        ("2020-01-01T00:00:00Z", None),
    ],
)
def test_b135_a_clock_slightly_ahead_is_tolerated(time: str, refused_if_new: str | None) -> None:
    """The keys are looked up before the window is tested, so the reader only says what would refuse a new event."""
    read_statement = statement(make_event(time=time), at=parse_rfc3339("2026-01-31T23:58:00Z"))
    assert (read_statement.refused_if_new.reason if read_statement.refused_if_new else None) == refused_if_new


def test_nanoseconds_are_cut_and_never_rounded() -> None:
    read_statement = statement(make_event(time="2026-01-14T23:59:59.999999999Z"))
    assert read_statement.occurred_at == parse_rfc3339("2026-01-15T00:00:00Z") - 1


# --- What a call becomes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["error", "refused"])
def test_an_error_without_usage_is_counted_and_not_charged(status: str) -> None:
    read_statement = statement(make_event(status=status, usage=None))
    assert part(read_statement) == Part("m-sub", "m-sub", {}, ("not_charged",), is_chargeable=False)
    assert read_statement.rank[1] == 0


@pytest.mark.parametrize("status", ["ok", "cancelled", "interrupted"])
def test_no_usage_is_missing_usage(status: str) -> None:
    read_statement = statement(make_event(status=status, usage=None))
    assert part(read_statement) == Part("m-sub", "m-sub", None, ("usage_missing",))
    assert read_statement.rank[1] == 0


def test_an_error_with_usage_is_charged() -> None:
    assert part(statement(make_event(status="error"))).is_chargeable


def test_in_progress_without_usage_claims_nothing() -> None:
    read_statement = statement(make_event(status="in_progress", usage=None))
    assert not read_statement.claims_request
    assert not read_statement.is_final
    assert part(read_statement).quantities is None


def test_in_progress_is_never_final() -> None:
    read_statement = statement(make_event(status="in_progress", final=True))
    assert (read_statement.is_final, read_statement.claims_request) == (False, True)


def test_a_void_is_zero_and_owes_nothing() -> None:
    read_statement = statement(make_event(status="void", revision=1))
    assert part(read_statement) == Part("m-sub", "m-sub", {}, is_chargeable=False)
    assert read_statement.rank == (0, 1, 1, 1, 20, 1)


@pytest.mark.parametrize("cache_result", ["exact_hit", "semantic_hit"])
def test_a_gateways_own_hit_claims_no_request_and_avoids_tokens(cache_result: str) -> None:
    read_statement = statement(make_event(cache_result=cache_result))
    assert read_statement.request_key is None
    assert read_statement.claims_request
    avoided = {"avoided": {"uncached_input_tokens": 100, "visible_output_tokens": 10}}
    assert part(read_statement) == Part("m-sub", "m-sub", {}, is_chargeable=False, avoided_tokens=110, notes=avoided)


def test_a_hit_without_usage_says_nothing_of_what_it_avoided() -> None:
    read_statement = statement(make_event(cache_result="exact_hit", usage=...))
    assert part(read_statement) == Part("m-sub", "m-sub", {}, is_chargeable=False)


def test_a_prefix_hit_is_billed() -> None:
    read_statement = statement(make_event(cache_result="prefix_hit"))
    assert read_statement.request_key is not None
    assert part(read_statement).is_chargeable


def test_events_without_request_id_are_never_one() -> None:
    first, second = (statement(make_event(name, request_id=stated)) for name, stated in (("a", None), ("b", "")))
    assert first.request_key is not None
    assert first.request_key != second.request_key
    assert first.request_key not in {request_key(TENANT, "a"), request_key(TENANT, "")}
    assert dimension(second, "request_id") is None


def test_an_estimate_counts_where_nothing_else_is_known() -> None:
    estimate = {"uncached_input_tokens": 640, "visible_output_tokens": 95}
    estimated = statement(make_event(usage=None, flavour=None, local_estimate=estimate, basis="estimated"))
    assert part(estimated).quantities == estimate
    reported = statement(make_event(usage=None, local_estimate=estimate))
    assert part(reported).quantities is None
    assert part(reported).notes == {"local_estimate": estimate}
    assert part(statement(make_event(local_estimate=estimate))).quantities != estimate


@pytest.mark.parametrize(
    ("requested", "served", "in_usage", "tier", "flags"),
    [
        (None, None, None, None, ()),
        ("flex", None, None, "flex", ("tier_assumed",)),
        ("auto", "default", None, "default", ()),
        ("auto", None, "priority", "priority", ()),
        (None, "default", "priority", "default", ()),
    ],
)
def test_the_served_tier_is_the_requested_one_only_where_none_is_stated(
    requested: str | None, served: str | None, in_usage: str | None, tier: str | None, flags: tuple[str, ...]
) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "service_tier": in_usage}
    read_statement = statement(make_event(usage=usage, requested_service_tier=requested, service_tier=served))
    assert dimension(read_statement, "service_tier") == tier
    assert part(read_statement).flags == flags


def test_frames_are_folded_by_us() -> None:
    frames = [{"input_tokens": 31, "output_tokens": 1}, None, {"output_tokens": 22}]
    read_statement = statement(
        make_event(usage_frames=frames, flavour="anthropic.messages", provider="anthropic", model="m-add")
    )
    assert part(read_statement).quantities == {"uncached_input_tokens": 31, "visible_output_tokens": 22}
    assert read_statement.raw_usage == b'[{"input_tokens":31,"output_tokens":1},{"output_tokens":22}]'
    nothing = statement(make_event(usage_frames=[None], flavour="anthropic.messages"))
    assert part(nothing).flags == ("usage_missing",)


def test_each_call_inside_an_answer_is_a_part_of_its_own_model() -> None:
    usage = {
        "input_tokens": 20,
        "output_tokens": 9,
        "iterations": [
            {"type": "message", "input_tokens": 20, "output_tokens": 9},
            {"type": "advisor_message", "model": "m-adviser", "input_tokens": 7, "output_tokens": 1},
        ],
    }
    read_statement = statement(
        make_event(
            usage=usage,
            flavour="anthropic.messages",
            provider="anthropic",
            model="m-add",
            requested_service_tier="standard",
        )
    )
    assert [(p.model, p.reported_model, p.quantities, p.flags) for p in read_statement.parts] == [
        ("m-add", "m-add", {"uncached_input_tokens": 20, "visible_output_tokens": 9}, ("tier_assumed",)),
        (None, "m-adviser", {"uncached_input_tokens": 7, "visible_output_tokens": 1}, ("tier_assumed",)),
    ]
    void = statement(make_event(usage=usage, flavour="anthropic.messages", provider="anthropic", status="void"))
    assert len(void.parts) == 1


def test_canonical_quantities_need_no_flavour() -> None:
    read_statement = statement(make_event(quantities={"search_units": 2, "pages": 0}, flavour=None))
    assert part(read_statement).quantities == {"search_units": 2}
    assert (read_statement.raw_usage, read_statement.flavour) == (None, None)


def test_a_raw_object_keeps_numbers_and_known_words_and_no_text() -> None:
    usage = (
        b'{"prompt_tokens": 1.0, "completion_tokens": 1e0, "total_tokens": 2, "service_tier": "flex", "cost": 0.0150,'
        b' "user": "Ann", "note": {"text": "hello", "n": 3}, "an odd key": 1, "huge": 1e99999, "deep": [{"type": "x"}, "y"],'
        b' "service": null, "is_byok": false, "type": "hello world"}'
    )
    body = factories.event_bytes(make_event(usage="@")).replace(b'"@"', usage)
    raw = statement(body).raw_usage
    assert raw == (
        b'{"completion_tokens":1,"cost":0.015,"deep":[{"type":"x"}],"is_byok":false,"note":{"n":3},"prompt_tokens":1,'
        b'"service":null,"service_tier":"flex","total_tokens":2}'
    )


@pytest.mark.parametrize("limit", [("input_tokens_max", 100), ("output_tokens_max", 10)])
@pytest.mark.parametrize(("spare", "outcome"), [(1, None), (0, None), (-1, "above_model_limit")])
def test_more_than_the_model_can_take_or_give_is_impossible(
    limit: tuple[str, int], spare: int, outcome: str | None
) -> None:
    model = Model("openai", "m-sub", **{limit[0]: limit[1] + spare})
    (item,) = read(make_event(), parties=make_parties(models=[("m-sub", model)]))
    assert reason(item) == outcome


def test_merges_move_the_future_and_not_the_past() -> None:
    merged_at = parse_rfc3339("2026-01-15T10:00:00Z")
    parties = make_parties(tenants=[make_tenant(TENANT, merged_into="t-beta", merged_at=merged_at)])
    before = statement(make_event(time="2026-01-15T09:59:59.999999Z"), parties)
    after = statement(make_event(time="2026-01-15T10:00:00Z"), parties)
    assert [(dimension(s, "tenant_id"), dimension(s, "sent_tenant_id")) for s in (before, after)] == [
        (TENANT, TENANT),
        ("t-beta", TENANT),
    ]
    assert before.event_key == after.event_key


# --- Who speaks ------------------------------------------------------------------------------------------------------


def test_a_tenants_credential_supplies_the_tenant() -> None:
    read_statement = statement(make_event(tenant_id=...), speaker=Speaker(tenant_id=TENANT))
    assert dimension(read_statement, "sent_tenant_id") == TENANT
    said_by_the_source = statement(make_event())
    assert (read_statement.event_key, read_statement.content_hash) == (
        said_by_the_source.event_key,
        said_by_the_source.content_hash,
    )
    assert read_statement.rank < said_by_the_source.rank


def test_a_sources_credential_speaks_for_its_tenants() -> None:
    assert statement(make_event(tenant_id="t-beta"), speaker=Speaker(source=GATEWAY)).rank[4] == 20


@pytest.mark.parametrize("speaker", [{}, {"tenant_id": "a", "source": "b"}])
def test_a_credential_belongs_to_one_party(speaker: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        Speaker(**speaker)


# --- Refusals --------------------------------------------------------------------------------------------------------

MESSAGES = [
    (b"", "empty_message"),
    (b" \n", "empty_message"),
    (b"hello", "invalid_json"),
    (b"{'id': 1}", "invalid_json"),
    (b"[", "truncated"),
    (b"{", "truncated"),
    (b'{"id": "x', "truncated"),
    (b"{} {}", "unknown_type"),
    (b"3", "not_an_event"),
    (b'"text"', "not_an_event"),
    (b"null", "not_an_event"),
    (b"[3]", "not_an_event"),
    (b"[[]]", "not_an_event"),
    (b"[" * 100_000, "nested_too_deep"),
    (b"[" + b'{"a":' * 100_000, "nested_too_deep"),
    (b"[" + b"[" * 100_000 + b"]" * 100_000 + b"]", "nested_too_deep"),
]


@pytest.mark.parametrize(("body", "expected"), MESSAGES, ids=range(len(MESSAGES)))
def test_what_is_no_message_is_one_dead_letter(body: bytes, expected: str) -> None:
    first, *others = read_events(body, PARTIES, NOW)
    assert reason(first) == expected
    assert [reason(item) for item in others] == (["trailing_bytes"] if body == b"{} {}" else [])


def test_an_empty_pack_holds_nothing() -> None:
    assert read_events(b"[]", PARTIES, NOW) == []


REFUSALS: list[tuple[str, dict[str, Any]]] = [
    ("unknown_type", {"type": "llm.usage.v9"}),
    ("unknown_type", {"type": ...}),
    ("unknown_type", {"type": []}),
    ("wrong_type", {"id": 7}),
    ("missing_id", {"id": ...}),
    ("missing_id", {"id": ""}),
    ("missing_source", {"source": ...}),
    ("missing_source", {"source": ""}),
    ("unknown_source", {"source": "gateway://unknown"}),
    ("missing_tenant", {"tenant_id": ...}),
    ("missing_tenant", {"tenant_id": ""}),
    ("missing_tenant", {"source": NODE, "tenant_id": None}),
    ("unknown_tenant", {"tenant_id": "t-nobody"}),
    ("source_may_not_speak", {"tenant_id": "t-gamma"}),
    ("missing_request_id", {"source": NODE, "request_id": ...}),
    ("missing_request_id", {"source": NODE, "request_id": ""}),
    ("missing_time", {"time": ...}),
    ("bad_time", {"time": "yesterday"}),
    ("unknown_flavour", {"flavour": "acme.chat"}),
    ("unknown_flavour", {"flavour": "acme.chat", "usage": None}),
    ("unknown_flavour", {"flavour": ...}),
    ("unknown_flavour", {"flavour": None, "usage_frames": [{"prompt_tokens": 1}]}),
    ("two_usages", {"quantities": {}, "usage": {}}),
    ("two_usages", {"quantities": {}, "usage_frames": [{}]}),
    ("two_usages", {"usage": {}, "usage_frames": [{}]}),
    ("unknown_meter", {"quantities": {"tokens": 1}}),
    ("unknown_meter", {"usage": None, "local_estimate": {"tokens": 1}}),
    ("not_a_count", {"usage": {"prompt_tokens": -1}}),
    ("part_above_whole", {"usage": {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}}}),
]


@pytest.mark.parametrize(("expected", "overrides"), REFUSALS)
def test_what_cannot_be_posted_is_kept_with_its_bytes_and_the_reason(expected: str, overrides: dict[str, Any]) -> None:
    body = factories.event_bytes(make_event(**overrides))
    (letter,) = read_events(body, PARTIES, NOW)
    assert isinstance(letter, DeadLetter)
    assert (letter.refused.reason, letter.body) == (expected, body)
    good, again = read(make_event("a"), make_event(**overrides))
    assert (reason(good), again) == (None, letter)


IN_ORDER: list[tuple[str, dict[str, Any]]] = [
    ("unknown_type", {"type": "llm.usage.v9"}),
    ("wrong_type", {"attempt": "one"}),
    ("nul_in_text", {"feature": "a\0b"}),
    ("missing_id", {"id": ...}),
    ("missing_source", {"source": ...}),
    ("missing_tenant", {"tenant_id": ...}),
    ("missing_time", {"time": ...}),
    ("unknown_flavour", {"flavour": "acme.chat"}),
    ("not_a_count", {"usage": {"prompt_tokens": -1}}),
]


@pytest.mark.parametrize("place", range(len(IN_ORDER)))
def test_an_event_is_refused_for_the_first_rule_that_it_breaks(place: int) -> None:
    broken: dict[str, Any] = {}
    for _, overrides in IN_ORDER[place:]:
        broken |= overrides
    assert [reason(item) for item in read(make_event(**broken))] == [IN_ORDER[place][0]]


@pytest.mark.parametrize(
    ("overrides", "expected", "detail"),
    [
        ({"feature": 3}, "wrong_type", "data.feature: Expected str | null, got int"),
        ({"tags": {"team": 1}}, "wrong_type", "data.tags[...]: Expected str, got int"),
        ({"usage": []}, "wrong_type", "data.usage: Expected object | null, got array"),
        ({"final": "yes"}, "wrong_type", "data.final: Expected bool | null, got str"),
        ({"latency_ms": 1.5}, "wrong_type", "data.latency_ms: Expected int | null, got float"),
        ({"status": "fine"}, "unknown_value", "data.status: Invalid enum value 'fine'"),
        ({"status": "a - at b"}, "unknown_value", "data.status: Invalid enum value 'a - at b'"),
        ({"lane": "fast"}, "unknown_value", "data.lane: Invalid enum value 'fast'"),
        ({"time_unit": "us"}, "unknown_value", "data.time_unit: Invalid enum value 'us'"),
        ({"specversion": "0.3"}, "unknown_value", "specversion: Invalid enum value '0.3'"),
        ({"feature": "x" * (TEXT_MAX + 1)}, "too_long", "data.feature: Expected str of length <= 256"),
        ({"tags": {str(n): "x" for n in range(33)}}, "too_long", "data.tags: Expected object of length <= 32"),
        ({"tags": {"x" * 257: "x"}}, "too_long", "a key of data.tags: Expected str of length <= 256"),
        ({"attempt": -1}, "out_of_range", "data.attempt: Expected int >= 0"),
        ({"attempt": 32768}, "out_of_range", "data.attempt: Expected int <= 32767"),
        ({"revision": 2**31}, "out_of_range", "data.revision: Expected int <= 2147483647"),
        ({"sequence": -1}, "out_of_range", "data.sequence: Expected int >= 0"),
        ({"sequence": 2**63}, "out_of_range", "data.sequence: Expected int <= 9223372036854775807"),
        ({"feature": "a\0b"}, "nul_in_text", "data.feature: holds U+0000"),
        ({"id": "a\0b"}, "nul_in_text", "id: holds U+0000"),
        ({"tags": {"a\0": "b"}}, "nul_in_text", "data.tags: holds U+0000"),
        ({"usage": {"prompt_tokens": 10**4299}}, "not_a_count",
         "prompt_tokens is 1" + "0" * 59 + ", a count must be a whole number from 0 to 2^63 - 1"),
        ({"usage": {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": "x"}}}, "not_a_count",
         "prompt_tokens_details.cached_tokens is 'x', a count must be a whole number from 0 to 2^63 - 1"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_field_and_the_rule(overrides: dict[str, Any], expected: str, detail: str) -> None:
    (letter,) = read(make_event(**overrides))
    assert isinstance(letter, DeadLetter)
    assert letter.refused == Refused(expected, detail)


def test_a_text_at_its_limit_is_taken() -> None:
    assert dimension(statement(make_event(feature="é" * TEXT_MAX)), "feature") == "é" * TEXT_MAX


def test_missing_data_is_refused() -> None:
    event = make_event()
    del event["data"]
    assert [reason(item) for item in read(event)] == ["missing_field"]


@pytest.mark.parametrize(
    ("speaker", "overrides", "expected"),
    [
        (Speaker(source=NODE), {}, "source_not_the_credential"),
        (Speaker(source=GATEWAY), {"tenant_id": "t-gamma"}, "source_may_not_speak"),
        (Speaker(source=GATEWAY), {"tenant_id": ...}, "missing_tenant"),
        (Speaker(tenant_id=TENANT), {"tenant_id": "t-beta"}, "tenant_not_the_credential"),
        (Speaker(tenant_id=TENANT), {"source": "gateway://unknown"}, "unknown_source"),
        (Speaker(tenant_id="t-gamma"), {"tenant_id": ...}, "source_may_not_speak"),
    ],
)
def test_a_credential_says_no_more_than_it_may(speaker: Speaker, overrides: dict[str, Any], expected: str) -> None:
    assert [reason(item) for item in read(make_event(**overrides), speaker=speaker)] == [expected]


def test_a_credential_is_not_confused_with_the_one_before_it() -> None:
    event = make_event()
    assert statement(event, speaker=Speaker(source=GATEWAY))
    assert [reason(item) for item in read(event, speaker=Speaker(source=NODE))] == ["source_not_the_credential"]
    unregistered = make_parties(sources=[Source(GATEWAY, "gateway", 20)])
    assert [reason(item) for item in read(event, parties=unregistered)] == ["source_may_not_speak"]


def test_every_reason_is_in_the_table() -> None:
    seen = {expected for expected, _ in REFUSALS} | {expected for _, expected in MESSAGES}
    assert seen <= set(REASONS)
    assert all(text.endswith(".") for text in REASONS.values())


def test_a_fault_of_ours_costs_one_event(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str | None) -> str:
        raise RuntimeError("boom")

    monkeypatch.setattr("ingest.usage_events.language_of", fail)
    assert [reason(item) for item in read(make_event("a"), window_event())] == ["reader_failed", None]


# --- Packs and lines -------------------------------------------------------------------------------------------------


def encoded(name: str) -> bytes:
    return factories.event_bytes(make_event(name))


@pytest.mark.parametrize(
    ("body", "reasons"),
    [
        (b"[" + encoded("a") + b"," + encoded("b")[:-9], [None, "truncated"]),
        (b"[" + encoded("a") + b"," + encoded("b"), [None, None]),
        (b"[" + encoded("a") + b",]", [None]),
        (b"[" + encoded("a") + b",oops," + encoded("b") + b"]", [None, "invalid_json", None]),
        (b"[" + encoded("a") + b",{oops}," + encoded("b") + b"]", [None, "invalid_json", None]),
        (b"[" + encoded("a") + b',{"a":"\xff"},' + encoded("b") + b"]", [None, "invalid_json", None]),
        (b"[" + encoded("a") + b',{"a":"tab\there"},' + encoded("b") + b"]", [None, "invalid_json", None]),
        (b"[" + encoded("a") + b',{"a":01},' + encoded("b") + b"]", [None, "invalid_json", None]),
        (b"[" + encoded("a") + b',{"a":1e99999999999999999999},' + encoded("b") + b"]", [None, "out_of_range", None]),
        (b"[" + encoded("a") + b',{"a":[}],' + encoded("b") + b"]", [None, "truncated"]),
        (b"[" + encoded("a") + b',"' + encoded("b").replace(b'"', b"'") + b"]", [None, "truncated"]),
        (b"[" + encoded("a") + b"]x", [None, "trailing_bytes"]),
        (encoded("a") + encoded("b"), [None, "trailing_bytes"]),
        (b"[" + encoded("a") + b"," + b"[" * 100_000 + b"]" * 100_000 + b"," + encoded("b") + b"]", [None, "nested_too_deep", None]),
    ],
    ids=range(14),
)  # fmt: skip
def test_what_can_be_told_apart_is_read(body: bytes, reasons: list[str | None]) -> None:
    items = read_events(body, PARTIES, NOW)
    assert [reason(item) for item in items] == reasons
    for place, item in enumerate(items):
        if isinstance(item, DeadLetter):
            assert event_bodies(body)[place] == item.body
            assert item.body in body


def test_lines_are_read_alone() -> None:
    body = encoded("a") + b"\r\n\n" + b"{oops\n" + encoded("b") + b"\n"
    assert [reason(item) for item in read_ndjson(body, PARTIES, NOW)] == [None, "invalid_json", None]
    assert read_ndjson(encoded("a"), PARTIES, NOW) == read_events(encoded("a"), PARTIES, NOW)
    assert [reason(item) for item in read_ndjson(b"\n", PARTIES, NOW)] == ["empty_message"]
    assert event_bodies(body, is_lines=True)[2] == encoded("b")


def test_a_bad_neighbour_changes_nothing_for_an_event() -> None:
    alone = read(make_event("a"))
    beside = read(make_event("a"), make_event("b", feature=3), make_event("c", feature="x\ud835"))
    assert alone == beside[:1]


@settings(max_examples=examples(300))
@given(st.binary(max_size=200))
def test_no_bytes_raise(body: bytes) -> None:
    for read_body in (read_events, read_ndjson):
        items = read_body(body, PARTIES, NOW)
        assert all(isinstance(item, DeadLetter) for item in items)
        assert items or body.split() in ([b"[]"], [b"[", b"]"])


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ["id", "source", "type", "time", *UsageEvent.__struct_fields__, "usage", "usage_frames", "quantities", "tags",
          "flavour", "status", "revision", "time_unix", "tenant_id", "request_id", "language", "local_estimate", "final"]  # fmt: skip


@settings(max_examples=examples(300))
@given(st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES, max_size=4))
def test_no_values_raise_or_cost_a_neighbour(overrides: dict[str, Any]) -> None:
    first, middle, last = read(make_event("a"), make_event("b", **{"data": ..., **overrides}), make_event("c"))
    assert [reason(first), reason(last)] == [None, None]
    assert reason(middle) != "reader_failed"
    if isinstance(middle, Statement):
        assert all(count > 0 for count in (part(middle).quantities or {}).values())


@settings(max_examples=examples(300))
@given(st.integers(0, 400), st.binary(min_size=1, max_size=3))
def test_a_broken_event_costs_no_leading_neighbour(place: int, noise: bytes) -> None:
    event = encoded("b")
    body = b"[" + encoded("a") + b"," + event[:place] + noise + event[place + 1 :] + b"," + encoded("c") + b"]"
    items = read_events(body, PARTIES, NOW)
    assert items[0] == statement(encoded("a"))
    assert all(reason(item) != "reader_failed" for item in items)


# --- Content ---------------------------------------------------------------------------------------------------------

GOLDEN = (
    b'{"basis":"reported","counts":{"usage":{"completion_tokens":10,"prompt_tokens":100,"total_tokens":110}},'
    b'"flavour":"openai.chat","id":"ev-1","model":"m-sub","provider":"openai","request_id":"req-ev-1",'
    b'"requested_model":"m-sub","source":"gateway://eu-1","status":"ok","tenant":"t-alpha","time":1768471200000000,'
    b'"version":2}'
)


def test_canonical_content_is_written_as_ever() -> None:
    """These bytes may only change together with CONTENT_HASH_VERSION."""
    event = decode_event(encoded("ev-1"))
    assert isinstance(event, UsageEvent)
    counts = b'{"usage":{"completion_tokens":10,"prompt_tokens":100,"total_tokens":110}}'
    assert canonical_content(event, TENANT, NOW - 60_000_000, True, counts) == GOLDEN
    assert CONTENT_HASH_VERSION == POSTED_HASH_VERSION == 2


def test_content_hashes_are_as_ever() -> None:
    hashes = {
        "usage": statement(make_event()).content_hash,
        "frames": statement(make_event(usage_frames=[{"prompt_tokens": 1, "completion_tokens": 1}])).content_hash,
        "quantities": statement(make_event(quantities={"pages": 2})).content_hash,
        "missing": statement(make_event(usage=None)).content_hash,
        "interim": statement(make_event(final=False, revision=3, basis="estimated", cache_result="miss")).content_hash,
    }
    assert hashes == {
        "usage": "d82dd66e-3058-daa1-4a40-ac514d3c847c",
        "frames": "9b1da359-3cd5-f63c-78ba-67e5fb0b53a1",
        "quantities": "98577e08-1df3-ff13-ce91-17052907acb5",
        "missing": "0a91e272-ef4f-e37f-909a-b5fcb4434c1f",
        "interim": "cb345008-8bda-4643-a987-3a814b79585c",
    }


@pytest.mark.parametrize(
    "other",
    [
        {"time": "2026-01-15T11:00:00+01:00"},
        {"time": "2026-01-15t10:00:00.000z"},
        {"usage": {"total_tokens": 110, "completion_tokens": 10, "prompt_tokens": 100}},
        {"usage": {"prompt_tokens": 100.0, "completion_tokens": 1e1, "total_tokens": 110.00}},
        {"latency_ms": 5, "ttft_ms": 1},
        {"tags": {"a": "b"}},
        {"unknown": {"field": 1}},
        {"final": True, "basis": "reported", "revision": 0, "service_tier": None},
        {"feature": "search"},
    ],
)
def test_content_is_what_matters_and_not_how_it_is_spelled(other: dict[str, Any]) -> None:
    assert statement(make_event(**other)).content_hash == statement(make_event()).content_hash


@pytest.mark.parametrize(
    "other",
    [
        {"time": "2026-01-15T10:00:00.000001Z"},
        {"usage": {"prompt_tokens": 100, "completion_tokens": 11, "total_tokens": 111}},
        {"usage": {"prompt_tokens": 100, "completion_tokens": 10}},
        {"usage": None},
        {"quantities": {"uncached_input_tokens": 100, "visible_output_tokens": 10}},
        {"usage_frames": [{"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}]},
        {"model": "m-other"},
        {"requested_model": "m-other"},
        {"service_tier": "flex"},
        {"region": "eu"},
        {"provider_account": "a"},
        {"status": "cancelled"},
        {"final": False},
        {"basis": "estimated"},
        {"revision": 1},
        {"request_id": "req-2"},
        {"tenant_id": "t-beta"},
        {"cache_result": "exact_hit"},
    ],
)
def test_other_content_has_another_hash(other: dict[str, Any]) -> None:
    assert statement(make_event(**other)).content_hash != statement(make_event()).content_hash


@st.composite
def respelled(draw: st.DrawFn) -> bytes:
    """The same event in another order, white space, number and offset spelling."""

    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shuffled(value[key]) for key in draw(st.permutations(sorted(value)))}
        return value

    offset = draw(st.integers(-14 * 60, 14 * 60))
    hours, minutes = divmod(abs(offset), 60)
    local = 10 * 60 + offset
    day, local = divmod(local, 24 * 60)
    sign = "-" if offset < 0 else "+"
    time = f"2026-01-{15 + day:02d}T{local // 60:02d}:{local % 60:02d}:00{sign}{hours:02d}:{minutes:02d}"
    indent = draw(st.sampled_from([None, 1, "\t"]))
    body = json.dumps(shuffled(make_event(time=time)), indent=indent)
    spelling = draw(st.sampled_from(["100", "100.0", "1e2", "1.00E+2", "1000e-1"]))
    return body.replace('"prompt_tokens": 100', f'"prompt_tokens": {spelling}').encode()


@given(respelled())
def test_the_hash_depends_on_no_spelling(body: bytes) -> None:
    assert statement(body).content_hash == statement(make_event()).content_hash
    assert statement(body) == statement(make_event())


# --- Languages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "language"),
    [
        ("en", "en"),
        ("EN_us", "en"),
        ("pt-BR", "pt"),
        ("zh-Hant-TW", "zh-Hant"),
        ("ZH_hant", "zh-Hant"),
        ("zh-cmn-hans-CN", "zh-Hans"),
        ("sr-latn-RS", "sr-Latn"),
        ("de-1996", "de"),
        ("haw", "haw"),
        ("und", "und"),
        ("", "und"),
        (None, "und"),
        ("e", "und"),
        ("english", "und"),
        ("en US", "und"),
        ("en--US", "und"),
        ("-en", "und"),
        ("en-", "und"),
        ("日本語", "und"),
        ("x-private", "und"),
    ],
)
def test_language_is_primary_subtag_plus_script(sent: str | None, language: str) -> None:
    assert language_of(sent) == language


# --- Windows of nodes ------------------------------------------------------------------------------------------------


def test_a_nodes_window_is_kept() -> None:
    (window,) = read(window_event())
    assert isinstance(window, Window)
    assert window.event_key == event_key(TENANT, NODE, "w-1")
    assert (window.node_id, window.ends_at - window.starts_at) == ("gpu-7", 60_000_000)
    assert json.loads(window.body) == {
        "tenant_id": TENANT,
        "node_id": "gpu-7",
        "starts_at": "2026-01-15T09:59:00Z",
        "ends_at": "2026-01-15T10:00:00Z",
        "gpu_count": 8,
        "kv_token_seconds": 45699,
    }
    (again,) = read(window_event(ends_at="2026-01-15T11:00:00+01:00"))
    (other,) = read(window_event(gpu_count=7))
    assert isinstance(again, Window)
    assert isinstance(other, Window)
    assert again.content_hash == window.content_hash != other.content_hash


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"ends_at": "2026-01-15T09:59:00Z"}, "bad_window"),
        ({"starts_at": "2026-01-14T09:59:59.999999Z"}, "bad_window"),
        ({"busy_ms": 60_001}, "part_above_whole"),
        ({"cache_read_tokens": 11, "input_tokens": 10}, "part_above_whole"),
        ({"starts_at": "yesterday"}, "bad_time"),
        ({"node_id": None}, "wrong_type"),
        ({"gpu_count": -1}, "out_of_range"),
        ({"tenant_id": None}, "missing_tenant"),
    ],
)
def test_a_window_that_cannot_be_is_refused(overrides: dict[str, Any], expected: str) -> None:
    assert [reason(item) for item in read(window_event(**overrides))] == [expected]


def test_a_window_from_the_future_is_refused_if_new() -> None:
    (window,) = read(window_event(starts_at="2026-12-31T00:00:00Z", ends_at="2027-01-01T00:00:00Z", busy_ms=86_400_000))
    assert isinstance(window, Window)
    assert window.refused_if_new is not None


def test_only_a_node_speaks_for_itself() -> None:
    from_gateway = {**window_event(), "source": GATEWAY}
    assert [reason(item) for item in read(from_gateway)] == ["source_may_not_speak"]
    body = event_bytes(window_event())
    assert [reason(item) for item in read_events(body, make_parties(), NOW, Speaker(tenant_id=TENANT))] == [
        "source_may_not_speak"
    ]


# --- The schema ------------------------------------------------------------------------------------------------------

EXAMPLES = [
    make_event(),
    make_event(tags={"team": "search"}, final=False, sequence=7, time=..., time_unix=1768471200, time_unit="s"),
    make_event(usage_frames=[None, {"input_tokens": 1}], flavour="anthropic.messages"),
    make_event(quantities={"pages": 3}, flavour=None),
    node_event(),
    window_event(),
]


def test_every_example_obeys_the_schema() -> None:
    schema = events_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for example in EXAMPLES:
        validator.validate(example)
        assert not isinstance(read(example)[0], DeadLetter)
    for broken in ({"status": "fine"}, {"attempt": -1}, {"feature": "x" * 257}, {"id": ""}):
        assert not validator.is_valid(make_event(**broken))


def test_every_field_of_an_event_is_described() -> None:
    definitions = events_json_schema()["$defs"]
    for name in ("UsageEvent", "UsageData"):
        undescribed = [field for field, shape in definitions[name]["properties"].items() if "description" not in shape]
        assert undescribed in ([], ["data"])


def test_every_flavour_says_where_it_was_read() -> None:
    assert all(flavour.source and name == flavour.name == name.lower() for name, flavour in FLAVOURS.items())


def test_the_pages_list_every_reason_and_flavour() -> None:
    pages = [Path(__file__).parents[2] / "ingest" / name for name in ("README.md", "flavours.md")]
    listed = [line for page in pages for line in page.read_text().splitlines() if line.startswith("| `")]
    reasons = [line for line in listed if line.split("`")[1] in REASONS]
    assert reasons == [f"| `{code}` | {text} |" for code, text in REASONS.items()]
    assert [line.split("`")[1] for line in listed if line.split("`")[1] in FLAVOURS] == list(FLAVOURS)


def test_the_ids_of_a_message_stand_in_the_order_of_its_items() -> None:
    good = factories.event_bytes(make_event("a"), make_event("b"))
    broken = b"[" + encoded("a") + b",oops," + encoded("b") + b',{"id":7},3]'
    assert event_ids(good) == ["a", "b"]
    assert event_ids(broken) == ["a", None, "b", None, None]
    assert len(read_events(broken, PARTIES, NOW)) == 5
    assert event_ids(encoded("a") + b"\n\n" + encoded("b"), is_lines=True) == ["a", "b"]
    assert event_bodies(broken)[2] == encoded("b")
