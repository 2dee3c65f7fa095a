"""What a usage object says, flavour by flavour: each token in exactly one meter. Ids in names are cases of the issue."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.counts import Counted, fold_frames, read_quantities, read_usage
from ingest.flavours import FLAVOURS
from ledger.meters import METERS, input_tokens, output_tokens
from ledger.statements import Refused


def counted(flavour: str, usage: dict[str, Any]) -> Counted:
    read = read_usage(flavour, usage)
    assert isinstance(read, Counted), read
    return read


def says(read: Counted | Refused) -> tuple[Any, ...]:
    assert isinstance(read, Counted), read
    return read.quantities, read.flags, read.is_priceable


def folded(flavour: str, frames: list[dict[str, Any] | None]) -> Counted:
    usage = fold_frames(flavour, frames)
    assert isinstance(usage, dict)
    return counted(flavour, usage)


def test_b001_cached_tokens_of_openai_lie_inside_the_prompt() -> None:
    read = counted(
        "openai.chat",
        {
            "prompt_tokens": 18000,
            "completion_tokens": 400,
            "total_tokens": 18400,
            "prompt_tokens_details": {"cached_tokens": 17500},
        },
    )
    assert read.quantities == {
        "uncached_input_tokens": 18000 - 17500,
        "cache_read_tokens": 17500,
        "visible_output_tokens": 400,
    }
    assert input_tokens(read.quantities) == 18000
    assert read.flags == ()


def test_b002_cache_reads_of_anthropic_lie_beside_the_input() -> None:
    read = counted(
        "anthropic.messages",
        {
            "input_tokens": 7,
            "cache_creation_input_tokens": 300,
            "cache_read_input_tokens": 96000,
            "output_tokens": 120,
        },
    )
    assert read.quantities == {
        "uncached_input_tokens": 7,
        "cache_read_tokens": 96000,
        "cache_write_other_tokens": 300,
        "visible_output_tokens": 120,
    }
    assert input_tokens(read.quantities) == 7 + 300 + 96000
    assert read.flags == ("lifetime_unknown",)


def test_b003_written_tokens_are_counted_once() -> None:
    read = counted(
        "anthropic.messages",
        {
            "input_tokens": 4,
            "cache_creation_input_tokens": 21000,
            "cache_read_input_tokens": 0,
            "output_tokens": 640,
            "cache_creation": {"ephemeral_5m_input_tokens": 21000, "ephemeral_1h_input_tokens": 0},
        },
    )
    assert read.quantities == {
        "uncached_input_tokens": 4,
        "cache_write_5m_tokens": 21000,
        "visible_output_tokens": 640,
    }
    assert read.flags == ()


def test_b008_thoughts_of_gemini_lie_beside_the_candidates() -> None:
    read = counted(
        "gemini.generate_content",
        {"promptTokenCount": 120, "candidatesTokenCount": 300, "thoughtsTokenCount": 1700, "totalTokenCount": 2120},
    )
    assert read.quantities == {
        "uncached_input_tokens": 120,
        "visible_output_tokens": 300,
        "reasoning_tokens": 1700,
    }
    assert output_tokens(read.quantities) == 300 + 1700


def test_b009_reasoning_of_openai_lies_inside_the_completion() -> None:
    read = counted(
        "openai.chat",
        {
            "prompt_tokens": 200,
            "completion_tokens": 2000,
            "total_tokens": 2200,
            "completion_tokens_details": {"reasoning_tokens": 1500},
        },
    )
    assert read.quantities == {
        "uncached_input_tokens": 200,
        "visible_output_tokens": 2000 - 1500,
        "reasoning_tokens": 1500,
    }
    assert output_tokens(read.quantities) == 2000


def test_b010_a_total_above_its_parts_is_unpriced_and_says_the_difference() -> None:
    read = counted(
        "gemini.generate_content", {"promptTokenCount": 1000, "candidatesTokenCount": 200, "totalTokenCount": 2600}
    )
    assert read.flags == ("total_above_parts",)
    assert read.notes == {"unexplained_tokens": 2600 - 1000 - 200}
    assert not read.is_priceable


def test_b012_the_last_cumulative_output_replaces_the_first() -> None:
    read = folded("anthropic.messages", [{"input_tokens": 31, "output_tokens": 1}, {"output_tokens": 22}])
    assert read.quantities == {"uncached_input_tokens": 31, "visible_output_tokens": 22}
    assert read.flags == ()


def test_b013_cumulative_usage_on_every_chunk_is_not_added() -> None:
    chunks = [{"promptTokenCount": 12, "candidatesTokenCount": 25 * k} for k in range(1, 41)]
    read = folded("gemini.generate_content", chunks)
    assert read.quantities == {"uncached_input_tokens": 12, "visible_output_tokens": 25 * 40}


def test_b019_a_cached_count_that_vllm_does_not_show_is_unknown() -> None:
    usage = {"prompt_tokens": 8000, "completion_tokens": 40, "total_tokens": 8040}
    assert counted("vllm.chat", usage).flags == ("cache_unknown",)
    known = counted("vllm.chat", {**usage, "prompt_tokens_details": {"cached_tokens": 7680}})
    assert known.quantities == {
        "uncached_input_tokens": 8000 - 7680,
        "cache_read_tokens": 7680,
        "visible_output_tokens": 40,
    }
    assert known.flags == ()
    assert counted("vllm.chat", {**usage, "prompt_tokens_details": {"cached_tokens": 0}}).flags == ()


@pytest.mark.parametrize(
    ("total", "flags"),
    [(None, ("total_missing",)), (0, ("total_differs",)), (18, ("total_differs",)), (19, ())],
)
def test_b081_a_missing_zero_or_low_total_is_priced_from_the_parts(total: int | None, flags: tuple[str, ...]) -> None:
    read = counted("openai.chat", {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": total})
    assert read.quantities == {"uncached_input_tokens": 12, "visible_output_tokens": 7}
    assert (read.flags, read.is_priceable) == (flags, True)


@pytest.mark.parametrize(
    ("usage", "reason"),
    [
        ({"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 150}}, "part_above_whole"),
        ({"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 101}}, "part_above_whole"),
        ({"prompt_tokens": 100, "completion_tokens": 10, "completion_tokens_details": {"reasoning_tokens": 11}}, "part_above_whole"),
        ({"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"audio_tokens": 101}}, "part_above_whole"),
        ({"prompt_tokens": 100, "completion_tokens": -50}, "not_a_count"),
        ({"prompt_tokens": Decimal("10.5"), "completion_tokens": 1}, "not_a_count"),
        ({"prompt_tokens": "100", "completion_tokens": 1}, "not_a_count"),
        ({"prompt_tokens": True, "completion_tokens": 1}, "not_a_count"),
        ({"prompt_tokens": {}, "completion_tokens": 1}, "not_a_count"),
        ({"prompt_tokens": 2**63, "completion_tokens": 1}, "not_a_count"),
        ({"prompt_tokens": Decimal("1e999999999"), "completion_tokens": 1}, "not_a_count"),
        ({"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": [1]}, "wrong_type"),
    ],
)  # fmt: skip
def test_b082_impossible_counts_are_refused(usage: dict[str, Any], reason: str) -> None:
    read = read_usage("openai.chat", usage)
    assert isinstance(read, Refused)
    assert read.reason == reason


def test_whole_numbers_count_in_each_spelling() -> None:
    read = counted(
        "openai.chat", {"prompt_tokens": Decimal("1e3"), "completion_tokens": Decimal("7.0"), "total_tokens": 1007}
    )
    assert says(read) == ({"uncached_input_tokens": 1000, "visible_output_tokens": 7}, (), True)


def test_openai_worked_example_with_writes_and_predictions() -> None:
    read = counted(
        "openai.chat",
        {
            "prompt_tokens": 12000,
            "completion_tokens": 1450,
            "total_tokens": 13450,
            "prompt_tokens_details": {"cached_tokens": 8192, "cache_write_tokens": 2560},
            "completion_tokens_details": {
                "reasoning_tokens": 900,
                "accepted_prediction_tokens": 100,
                "rejected_prediction_tokens": 50,
            },
        },
    )
    assert read.quantities == {
        "uncached_input_tokens": 12000 - 8192 - 2560,
        "cache_read_tokens": 8192,
        "cache_write_other_tokens": 2560,
        "visible_output_tokens": 1450 - 900 - 50,
        "reasoning_tokens": 900,
        "rejected_prediction_tokens": 50,
    }
    assert read.flags == ()


def test_cached_tokens_without_modality_are_taken_from_text_first() -> None:
    """Text 700 + audio 300, cached 512: 188 text are left. Cached 800: 700 text and 100 audio were read."""
    usage: dict[str, Any] = {
        "prompt_tokens": 1000,
        "completion_tokens": 420,
        "total_tokens": 1420,
        "prompt_tokens_details": {"text_tokens": 700, "audio_tokens": 300, "cached_tokens": 512},
        "completion_tokens_details": {"text_tokens": 120, "audio_tokens": 300},
    }
    read = counted("openai.chat", usage)
    assert read.quantities == {
        "cache_read_tokens": 512,
        "uncached_input_tokens": 700 - 512,
        "uncached_input_audio_tokens": 300,
        "visible_output_tokens": 120,
        "visible_output_audio_tokens": 300,
    }
    assert read.flags == ("modality_assumed",)
    usage["prompt_tokens_details"]["cached_tokens"] = 800
    read = counted("openai.chat", usage)
    assert read.quantities is not None
    assert read.quantities["cache_read_tokens"] == 800
    assert read.quantities["uncached_input_audio_tokens"] == 200
    assert "uncached_input_tokens" not in read.quantities


def test_overlapping_axes_leave_the_total_in_force() -> None:
    """Text 125 and cached 98 both describe the same 125 tokens."""
    read = counted(
        "openai.chat",
        {
            "prompt_tokens": 125,
            "completion_tokens": 5,
            "total_tokens": 130,
            "prompt_tokens_details": {"text_tokens": 125, "cached_tokens": 98},
        },
    )
    assert says(read) == ({"cache_read_tokens": 98, "uncached_input_tokens": 27, "visible_output_tokens": 5}, (), True)


def test_anthropic_worked_stream_keeps_the_lifetimes_of_its_start() -> None:
    read = folded(
        "anthropic.messages",
        [
            {
                "input_tokens": 210,
                "cache_read_input_tokens": 18000,
                "cache_creation_input_tokens": 3000,
                "cache_creation": {"ephemeral_5m_input_tokens": 1000, "ephemeral_1h_input_tokens": 2000},
                "service_tier": "priority",
                "output_tokens": 3,
            },
            {
                "output_tokens": 1240,
                "output_tokens_details": {"thinking_tokens": 700},
                "server_tool_use": {"web_search_requests": 2},
            },
        ],
    )
    assert read.quantities == {
        "uncached_input_tokens": 210,
        "cache_read_tokens": 18000,
        "cache_write_5m_tokens": 1000,
        "cache_write_1h_tokens": 2000,
        "visible_output_tokens": 1240 - 700,
        "reasoning_tokens": 700,
        "web_search_calls": 2,
    }
    assert (read.flags, read.tier) == ((), "priority")


def test_writes_beyond_the_split_of_the_start_have_no_known_lifetime() -> None:
    start = {
        "input_tokens": 1,
        "cache_creation_input_tokens": 3000,
        "cache_creation": {"ephemeral_5m_input_tokens": 1000, "ephemeral_1h_input_tokens": 2000},
        "output_tokens": 1,
    }
    read = folded("anthropic.messages", [start, {"cache_creation_input_tokens": 3500, "output_tokens": 9}])
    assert read.quantities == {
        "uncached_input_tokens": 1,
        "cache_write_5m_tokens": 1000,
        "cache_write_1h_tokens": 2000,
        "cache_write_other_tokens": 500,
        "visible_output_tokens": 9,
    }
    assert read.flags == ("lifetime_unknown",)


@pytest.mark.parametrize("aggregate", [0, 2999, 3001])
def test_a_split_against_its_aggregate_gives_way_to_it(aggregate: int) -> None:
    read = counted(
        "anthropic.messages",
        {
            "input_tokens": 1,
            "output_tokens": 1,
            "cache_creation_input_tokens": aggregate,
            "cache_creation": {"ephemeral_5m_input_tokens": 1000, "ephemeral_1h_input_tokens": 2000},
        },
    )
    assert read.quantities is not None
    assert read.quantities.get("cache_write_other_tokens", 0) == aggregate
    assert input_tokens(read.quantities) == 1 + aggregate
    assert read.flags == ("lifetime_unknown",)


def test_a_split_without_its_aggregate_counts() -> None:
    read = counted(
        "anthropic.messages",
        {"input_tokens": 1, "output_tokens": 1, "cache_creation": {"ephemeral_1h_input_tokens": 2000}},
    )
    assert says(read) == (
        {"uncached_input_tokens": 1, "cache_write_1h_tokens": 2000, "visible_output_tokens": 1},
        (),
        True,
    )


def test_a_stream_that_only_began_says_no_output() -> None:
    read = folded("anthropic.messages", [{"input_tokens": 31, "output_tokens": 1}])
    assert says(read) == ({"uncached_input_tokens": 31}, ("usage_incomplete",), False)


def each_call(read: Counted | Refused) -> list[tuple[str | None, dict[str, int] | None]]:
    assert isinstance(read, Counted), read
    return [(model, call.quantities) for model, call in read.calls]


def test_a_compaction_is_a_call_besides_the_top_level() -> None:
    """Compaction 150,000 and 3,000, message 20,000 and 900: billed input 170,000, output 3,900."""
    usage: dict[str, Any] = {
        "input_tokens": 20000,
        "output_tokens": 900,
        "iterations": [
            {"type": "compaction", "input_tokens": 150000, "output_tokens": 3000},
            {"type": "message", "input_tokens": 20000, "output_tokens": 900},
        ],
    }
    read = counted("anthropic.messages", usage)
    assert each_call(read) == [
        (None, {"uncached_input_tokens": 150000, "visible_output_tokens": 3000}),
        (None, {"uncached_input_tokens": 20000, "visible_output_tokens": 900}),
    ]
    assert (read.input_tokens, read.output_tokens, read.flags) == (170000, 3900, ())
    usage["iterations"].append(
        {"type": "advisor_message", "model": "m-big", "input_tokens": 22000, "output_tokens": 400}
    )
    assert each_call(counted("anthropic.messages", usage))[2] == (
        "m-big",
        {"uncached_input_tokens": 22000, "visible_output_tokens": 400},
    )


def test_a_single_plain_iteration_is_the_top_level() -> None:
    usage: dict[str, Any] = {
        "input_tokens": 5,
        "output_tokens": 9,
        "output_tokens_details": {"thinking_tokens": 4},
        "iterations": [{"type": "message", "input_tokens": 5, "output_tokens": 9}],
    }
    read = counted("anthropic.messages", usage)
    assert (read.calls, read.quantities) == (
        (),
        {"uncached_input_tokens": 5, "reasoning_tokens": 4, "visible_output_tokens": 5},
    )


def test_hops_that_a_fallback_replaced_are_calls_that_the_top_level_lacks() -> None:
    read = counted(
        "anthropic.messages",
        {
            "input_tokens": 412,
            "output_tokens": 264,
            "server_tool_use": {"web_search_requests": 1},
            "iterations": [
                {"type": "message", "model": "m-big", "input_tokens": 408, "output_tokens": 0},
                {"type": "fallback_message", "model": "m-mid", "input_tokens": 412, "output_tokens": 264},
            ],
        },
    )
    assert each_call(read) == [
        ("m-big", {"uncached_input_tokens": 408}),
        ("m-mid", {"uncached_input_tokens": 412, "visible_output_tokens": 264, "web_search_calls": 1}),
    ]
    assert [call.flags for _, call in read.calls] == [("refused_before_output",), ()]


@pytest.mark.parametrize(
    ("stated", "flag", "notes"),
    [(910, "total_above_parts", {"unexplained_tokens": 10}), (900, None, None), (890, "total_differs", None)],
)
def test_the_top_level_checks_the_calls_that_it_covers(
    stated: int, flag: str | None, notes: dict[str, int] | None
) -> None:
    read = counted(
        "anthropic.messages",
        {
            "input_tokens": 0,
            "output_tokens": stated,
            "iterations": [{"output_tokens": 300, "input_tokens": 0}, {"output_tokens": 600, "input_tokens": 0}],
        },
    )
    first = read.calls[0][1]
    assert (first.flags, first.notes) == ((flag,) if flag else (), notes)
    assert first.is_priceable == (flag != "total_above_parts")


def test_redeemed_credit_leaves_the_writes_without_a_price() -> None:
    usage = {"input_tokens": 5, "output_tokens": 9, "fallback_credit": {"status": "not_applied"}}
    assert counted("anthropic.messages", usage).is_priceable
    read = counted("anthropic.messages", {**usage, "fallback_credit": {"status": "redeemed"}})
    assert (read.flags, read.is_priceable) == (("fallback_credit",), False)


def test_gemini_worked_example_with_modalities_and_tool_use() -> None:
    read = counted(
        "gemini.generate_content",
        {
            "promptTokenCount": 10000,
            "promptTokensDetails": [
                {"modality": "TEXT", "tokenCount": 9000},
                {"modality": "IMAGE", "tokenCount": 1000},
            ],
            "cachedContentTokenCount": 8000,
            "cacheTokensDetails": [{"modality": "TEXT", "tokenCount": 8000}],
            "candidatesTokenCount": 300,
            "thoughtsTokenCount": 1200,
            "toolUsePromptTokenCount": 400,
            "totalTokenCount": 11900,
            "trafficType": "ON_DEMAND_PRIORITY",
        },
    )
    assert read.quantities == {
        "uncached_input_tokens": 1000,
        "uncached_input_image_tokens": 1000,
        "cache_read_tokens": 8000,
        "tool_prompt_tokens": 400,
        "visible_output_tokens": 300,
        "reasoning_tokens": 1200,
    }
    assert (read.flags, read.tier) == ((), "priority")


def test_cached_images_of_gemini_are_read_images() -> None:
    read = counted(
        "gemini.generate_content",
        {
            "promptTokenCount": 1000,
            "promptTokensDetails": [{"modality": "IMAGE", "tokenCount": 600}],
            "cachedContentTokenCount": 500,
            "cacheTokensDetails": [{"modality": "IMAGE", "tokenCount": 500}],
            "candidatesTokenCount": 1,
            "totalTokenCount": 1001,
        },
    )
    assert read.quantities == {
        "uncached_input_tokens": 400,
        "uncached_input_image_tokens": 100,
        "cache_read_image_tokens": 500,
        "visible_output_tokens": 1,
    }


def test_thoughts_inside_the_candidates_are_told_by_the_total() -> None:
    read = counted(
        "gemini.generate_content",
        {"promptTokenCount": 10000, "candidatesTokenCount": 1500, "thoughtsTokenCount": 1200, "totalTokenCount": 11500},
    )
    assert says(read) == (
        {"uncached_input_tokens": 10000, "visible_output_tokens": 1500 - 1200, "reasoning_tokens": 1200},
        (),
        True,
    )


@pytest.mark.parametrize(
    ("total", "flags"),
    [(120, ()), (121, ("total_above_parts",)), (None, ("usage_incomplete",))],
)
def test_absent_candidates_are_zero_only_if_the_total_closes(total: int | None, flags: tuple[str, ...]) -> None:
    read = counted("gemini.generate_content", {"promptTokenCount": 120, "totalTokenCount": total})
    assert read.quantities == {"uncached_input_tokens": 120}
    assert (read.flags, read.is_priceable) == (flags, not flags)


def test_vllm_worked_example_leaves_created_tokens_uncached() -> None:
    read = counted(
        "vllm.chat",
        {
            "prompt_tokens": 6010,
            "completion_tokens": 350,
            "total_tokens": 6360,
            "prompt_tokens_details": {
                "cached_tokens": 4096,
                "created_cache_tokens": 1904,
                "multimodal_tokens": {"image": 100},
            },
            "completion_tokens_details": {"reasoning_tokens": 200},
        },
    )
    assert read.quantities == {
        "cache_read_tokens": 4096,
        "uncached_input_tokens": 6010 - 4096 - 100,
        "uncached_input_image_tokens": 100,
        "visible_output_tokens": 150,
        "reasoning_tokens": 200,
    }


# A query is counted because it was made.
@pytest.mark.parametrize("flavour", [name for name, flavour in FLAVOURS.items() if not flavour.each_call])
def test_a_required_count_that_is_absent_leaves_the_entry_unpriced(flavour: str) -> None:
    read = counted(flavour, {})
    assert read.quantities is None
    assert "usage_incomplete" in read.flags
    assert not read.is_priceable


def test_the_last_stated_usage_of_an_openai_stream_counts() -> None:
    last = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    assert fold_frames("openai.chat", [None, {"prompt_tokens": 5, "completion_tokens": 1}, last, None]) == last
    assert fold_frames("openai.chat", [None, {}]) is None


@pytest.mark.parametrize(
    ("stated", "reason"),
    [({"tokens": 1}, "unknown_meter"), ({"pages": -1}, "not_a_count"), ({"pages": "1"}, "not_a_count")],
)
def test_canonical_quantities_are_checked(stated: dict[str, Any], reason: str) -> None:
    read = read_quantities(stated)
    assert isinstance(read, Refused)
    assert read.reason == reason


def test_a_null_canonical_quantity_is_incomplete() -> None:
    assert says(read_quantities({"pages": 2, "images": None})) == ({"pages": 2}, ("usage_incomplete",), False)


COUNTS = st.one_of(st.none(), st.integers(0, 50), st.integers(0, 2**40))


def objects(**places: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=places)


USAGES = {
    "openai.chat": objects(
        prompt_tokens=COUNTS,
        completion_tokens=COUNTS,
        total_tokens=COUNTS,
        prompt_tokens_details=objects(
            cached_tokens=COUNTS,
            cache_write_tokens=COUNTS,
            audio_tokens=COUNTS,
            image_tokens=COUNTS,
            text_tokens=COUNTS,
        ),
        completion_tokens_details=objects(
            reasoning_tokens=COUNTS, rejected_prediction_tokens=COUNTS, audio_tokens=COUNTS
        ),
    ),
    "anthropic.messages": objects(
        input_tokens=COUNTS,
        cache_read_input_tokens=COUNTS,
        cache_creation_input_tokens=COUNTS,
        cache_creation=objects(ephemeral_5m_input_tokens=COUNTS, ephemeral_1h_input_tokens=COUNTS),
        output_tokens=COUNTS,
        output_tokens_details=objects(thinking_tokens=COUNTS),
    ),
    "gemini.generate_content": objects(
        promptTokenCount=COUNTS,
        cachedContentTokenCount=COUNTS,
        candidatesTokenCount=COUNTS,
        thoughtsTokenCount=COUNTS,
        toolUsePromptTokenCount=COUNTS,
        totalTokenCount=COUNTS,
        promptTokensDetails=st.lists(
            st.fixed_dictionaries(
                {"modality": st.sampled_from(["TEXT", "IMAGE", "AUDIO", "NEW"]), "tokenCount": COUNTS}
            )
        ),
        cacheTokensDetails=st.lists(
            st.fixed_dictionaries({"modality": st.sampled_from(["TEXT", "IMAGE"]), "tokenCount": COUNTS})
        ),
    ),
    "vllm.chat": objects(
        prompt_tokens=COUNTS,
        completion_tokens=COUNTS,
        total_tokens=COUNTS,
        prompt_tokens_details=objects(cached_tokens=COUNTS, multimodal_tokens=st.dictionaries(st.text(), COUNTS)),
        completion_tokens_details=objects(reasoning_tokens=COUNTS),
    ),
}


@given(st.sampled_from(sorted(USAGES)).flatmap(lambda name: st.tuples(st.just(name), USAGES[name])))
def test_quantities_are_never_negative_and_reproduce_the_total(case: tuple[str, dict[str, Any]]) -> None:
    flavour, usage = case
    read = read_usage(flavour, usage)
    if isinstance(read, Refused):
        return
    assert all(count > 0 and meter in METERS for meter, count in (read.quantities or {}).items())
    if not read.is_priceable and "total_above_parts" not in read.flags:
        return
    quantities = read.quantities or {}
    whole_in, whole_out = input_tokens(quantities), output_tokens(quantities)
    if flavour in {"openai.chat", "vllm.chat"}:
        assert (whole_in, whole_out) == (usage["prompt_tokens"], usage["completion_tokens"])
    elif flavour == "gemini.generate_content":
        assert whole_in == usage["promptTokenCount"] + (usage.get("toolUsePromptTokenCount") or 0)
    else:
        assert whole_out == usage["output_tokens"]
    stated = usage.get("total_tokens", usage.get("totalTokenCount"))
    unexplained = (read.notes or {}).get("unexplained_tokens", 0)
    if stated is not None and "total_differs" not in read.flags:
        assert whole_in + whole_out + unexplained == stated


DELTAS = st.lists(
    st.fixed_dictionaries({"output_tokens": st.integers(0, 500)}, optional={"input_tokens": st.integers(0, 500)}),
    min_size=1,
    max_size=8,
)


@given(DELTAS, st.integers(0, 20))
def test_anthropic_deltas_replace_and_never_add(deltas: list[dict[str, Any]], placeholder: int) -> None:
    start = {"input_tokens": 31, "output_tokens": placeholder, "service_tier": "standard"}
    usage = fold_frames("anthropic.messages", [start, *deltas])
    stated = [delta["input_tokens"] for delta in deltas if "input_tokens" in delta]
    assert usage == {
        "input_tokens": stated[-1] if stated else 31,
        "output_tokens": deltas[-1]["output_tokens"],
        "service_tier": "standard",
    }
    assert fold_frames("anthropic.messages", [start, *[d for d in deltas for _ in range(3)]]) == usage
