"""What a usage object says, flavour by flavour: each token in exactly one meter. Ids in names are cases of the issue."""

import json
from dataclasses import replace
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.counts import (
    _PLANS,
    Counted,
    _gather,
    _keys,
    fold_frames,
    read_frames,
    read_quantities,
    read_usage,
)
from ingest.flavours import FLAVOURS
from ledger.meters import METERS, input_tokens, output_tokens
from ledger.statements import Refused
from tests.support.soak import examples


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


# --- Each flavour by its worked example: counts in, meters out --------------------------------------------------------

USAGE_TOKENS = ("uncached_input_tokens", "cache_read_tokens", "visible_output_tokens", "reasoning_tokens")

WORKED: dict[str, tuple[str, dict[str, Any], dict[str, int], tuple[str, ...]]] = {
    "responses": (
        "openai.responses",
        {
            "input_tokens": 5000,
            "input_tokens_details": {"cached_tokens": 4096},
            "output_tokens": 2300,
            "output_tokens_details": {"reasoning_tokens": 1800},
            "total_tokens": 7300,
        },
        {
            "uncached_input_tokens": 904,
            "cache_read_tokens": 4096,
            "visible_output_tokens": 500,
            "reasoning_tokens": 1800,
        },
        (),
    ),
    "realtime, each modality with its own reads": (
        "openai.realtime",
        {
            "input_tokens": 2400,
            "input_token_details": {
                "text_tokens": 900,
                "audio_tokens": 1500,
                "cached_tokens": 1600,
                "cached_tokens_details": {"text_tokens": 600, "audio_tokens": 1000},
            },
            "output_tokens": 800,
            "output_token_details": {"text_tokens": 200, "audio_tokens": 600},
            "total_tokens": 3200,
        },
        {
            "uncached_input_tokens": 300,
            "uncached_input_audio_tokens": 500,
            "cache_read_tokens": 600,
            "cache_read_audio_tokens": 1000,
            "visible_output_tokens": 200,
            "visible_output_audio_tokens": 600,
        },
        (),
    ),
    "images without details of the output": (
        "openai.images",
        {
            "input_tokens": 350,
            "input_tokens_details": {"text_tokens": 50, "image_tokens": 300},
            "output_tokens": 4160,
            "total_tokens": 4510,
        },
        {"uncached_input_tokens": 50, "uncached_input_image_tokens": 300, "visible_output_image_tokens": 4160},
        (),
    ),
    "images with text in the output": (
        "openai.images",
        {
            "input_tokens": 50,
            "output_tokens": 4200,
            "output_tokens_details": {"text_tokens": 40, "image_tokens": 4160},
            "total_tokens": 4250,
        },
        {"uncached_input_tokens": 50, "visible_output_tokens": 40, "visible_output_image_tokens": 4160},
        (),
    ),
    "transcription by tokens": (
        "openai.transcription",
        {
            "type": "tokens",
            "input_tokens": 26,
            "input_token_details": {"text_tokens": 4, "audio_tokens": 22},
            "output_tokens": 9,
            "total_tokens": 35,
        },
        {"uncached_input_tokens": 4, "uncached_input_audio_tokens": 22, "visible_output_tokens": 9},
        (),
    ),
    "transcription by its length, a started second being one": (
        "openai.transcription",
        {"type": "duration", "seconds": Decimal("14.5")},
        {"audio_input_seconds": 15},
        ("seconds_rounded_up",),
    ),
    "speech": ("openai.speech", {"characters": 120}, {"characters": 120}, ()),
    "embeddings": ("openai.embeddings", {"prompt_tokens": 8, "total_tokens": 8}, {"embedding_input_tokens": 8}, ()),
    "a line of a batch, of chat": (
        "openai.batch",
        {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "total_tokens": 15,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
        {"uncached_input_tokens": 6, "cache_read_tokens": 4, "visible_output_tokens": 5},
        (),
    ),
    "a line of a batch, of responses": (
        "openai.batch",
        {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15, "output_tokens_details": {"reasoning_tokens": 2}},
        {"uncached_input_tokens": 10, "visible_output_tokens": 3, "reasoning_tokens": 2},
        (),
    ),
    "hosted models of Azure": (
        "azure.chat",
        {"prompt_tokens": 19, "completion_tokens": 20, "reasoning_tokens": 5, "total_tokens": 39},
        {"uncached_input_tokens": 19, "visible_output_tokens": 15, "reasoning_tokens": 5},
        (),
    ),
    "Qwen's explicit cache": (
        "alibaba.chat",
        {
            "prompt_tokens": 100,
            "completion_tokens": 5,
            "total_tokens": 105,
            "prompt_tokens_details": {"cached_tokens": 60, "cache_creation_input_tokens": 30},
        },
        {
            "uncached_input_tokens": 10,
            "cache_read_tokens": 60,
            "cache_write_other_tokens": 30,
            "visible_output_tokens": 5,
        },
        (),
    ),
    "Kimi's cached tokens at the top": (
        "moonshot.chat",
        {"prompt_tokens": 20, "completion_tokens": 30, "total_tokens": 50, "cached_tokens": 10},
        {"uncached_input_tokens": 10, "cache_read_tokens": 10, "visible_output_tokens": 30},
        (),
    ),
    "Perplexity, citations and reasoning besides": (
        "perplexity.chat",
        {
            "prompt_tokens": 10,
            "completion_tokens": 20,
            "reasoning_tokens": 300,
            "citation_tokens": 40,
            "num_search_queries": 3,
            "total_tokens": 370,
        },
        {
            "uncached_input_tokens": 10,
            "visible_output_tokens": 20,
            "reasoning_tokens": 300,
            "citation_tokens": 40,
            "web_search_calls": 3,
        },
        (),
    ),
    "Perplexity, reasoning inside": (
        "perplexity.chat",
        {"prompt_tokens": 10, "completion_tokens": 320, "reasoning_tokens": 300, "total_tokens": 330},
        {"uncached_input_tokens": 10, "visible_output_tokens": 20, "reasoning_tokens": 300},
        (),
    ),
    "DeepSeek": (
        "deepseek.chat",
        {
            "prompt_tokens": 9600,
            "prompt_cache_hit_tokens": 8960,
            "prompt_cache_miss_tokens": 640,
            "completion_tokens": 2100,
            "completion_tokens_details": {"reasoning_tokens": 1700},
            "total_tokens": 11700,
        },
        {
            "uncached_input_tokens": 640,
            "cache_read_tokens": 8960,
            "visible_output_tokens": 400,
            "reasoning_tokens": 1700,
        },
        (),
    ),
    "Mistral's OCR": ("mistral.ocr", {"pages_processed": 3, "doc_size_bytes": 90210}, {"pages": 3}, ()),
    "Mistral's audio": (
        "mistral.chat",
        {"prompt_audio_seconds": 36, "prompt_tokens": 13, "completion_tokens": 151, "total_tokens": 164},
        {"audio_input_seconds": 36, "uncached_input_tokens": 13, "visible_output_tokens": 151},
        (),
    ),
    "Groq": (
        "groq.chat",
        {
            "prompt_tokens": 2000,
            "completion_tokens": 600,
            "total_tokens": 2600,
            "prompt_tokens_details": {"cached_tokens": 1024},
            "completion_tokens_details": {"reasoning_tokens": 380},
            "queue_time": Decimal("0.02"),
        },
        {
            "uncached_input_tokens": 976,
            "cache_read_tokens": 1024,
            "visible_output_tokens": 220,
            "reasoning_tokens": 380,
        },
        (),
    ),
    "OpenRouter": (
        "openrouter.chat",
        {
            "prompt_tokens": 1500,
            "completion_tokens": 300,
            "total_tokens": 1800,
            "prompt_tokens_details": {"cached_tokens": 1000, "cache_write_tokens": 200},
            "completion_tokens_details": {"reasoning_tokens": 100},
            "server_tool_use_details": {"web_search_requests": 1},
        },
        {
            "uncached_input_tokens": 300,
            "cache_read_tokens": 1000,
            "cache_write_other_tokens": 200,
            "visible_output_tokens": 200,
            "reasoning_tokens": 100,
            "web_search_calls": 1,
        },
        (),
    ),
    "xAI chat, reasoning besides": (
        "xai.chat",
        {
            "prompt_tokens": 1000,
            "completion_tokens": 50,
            "total_tokens": 1450,
            "prompt_tokens_details": {"cached_tokens": 640},
            "completion_tokens_details": {"reasoning_tokens": 400},
        },
        {"uncached_input_tokens": 360, "cache_read_tokens": 640, "visible_output_tokens": 50, "reasoning_tokens": 400},
        (),
    ),
    "xAI chat, reads above the prompt lie beside it": (
        "xai.chat",
        {
            "prompt_tokens": 100,
            "completion_tokens": 50,
            "total_tokens": 790,
            "prompt_tokens_details": {"cached_tokens": 640},
        },
        {"uncached_input_tokens": 100, "cache_read_tokens": 640, "visible_output_tokens": 50},
        (),
    ),
    "xAI responses, reasoning inside": (
        "xai.responses",
        {
            "input_tokens": 1000,
            "input_tokens_details": {"cached_tokens": 640},
            "output_tokens": 450,
            "output_tokens_details": {"reasoning_tokens": 400},
            "total_tokens": 1450,
            "server_side_tool_usage_details": {"x_search_calls": 2, "web_search_calls": 0},
        },
        {
            "uncached_input_tokens": 360,
            "cache_read_tokens": 640,
            "visible_output_tokens": 50,
            "reasoning_tokens": 400,
            "x_search_calls": 2,
        },
        (),
    ),
    "xAI native, one word for each tool call": (
        "xai.native",
        {
            "prompt_tokens": 2000,
            "prompt_text_tokens": 2000,
            "cached_prompt_text_tokens": 500,
            "completion_tokens": 40,
            "reasoning_tokens": 160,
            "total_tokens": 2200,
            "server_side_tools_used": [
                "SERVER_SIDE_TOOL_WEB_SEARCH",
                "SERVER_SIDE_TOOL_MCP",
                "SERVER_SIDE_TOOL_WEB_SEARCH",
            ],
        },
        {
            "uncached_input_tokens": 1500,
            "cache_read_tokens": 500,
            "visible_output_tokens": 40,
            "reasoning_tokens": 160,
            "web_search_calls": 2,
        },
        (),
    ),
    "Gemini Live leaves thoughts out of its total": (
        "gemini.live",
        {"promptTokenCount": 417, "responseTokenCount": 74, "thoughtsTokenCount": 77, "totalTokenCount": 491},
        {"uncached_input_tokens": 417, "visible_output_tokens": 74, "reasoning_tokens": 77},
        (),
    ),
    "Gemini Interactions": (
        "gemini.interactions",
        {
            "total_input_tokens": 22,
            "input_tokens_by_modality": [{"modality": "image", "tokens": 12}, {"modality": "text", "tokens": 10}],
            "total_cached_tokens": 0,
            "total_output_tokens": 590,
            "total_thought_tokens": 1173,
            "total_tool_use_tokens": 198,
            "total_tokens": 1983,
        },
        {
            "uncached_input_tokens": 10,
            "uncached_input_image_tokens": 12,
            "tool_prompt_tokens": 198,
            "visible_output_tokens": 590,
            "reasoning_tokens": 1173,
        },
        (),
    ),
    "Claude in Bedrock": (
        "bedrock.converse",
        {
            "inputTokens": 40,
            "cacheReadInputTokens": 14000,
            "cacheWriteInputTokens": 2000,
            "cacheWriteInputTokenCount": 2000,
            "cacheDetails": [{"ttl": "1h", "inputTokens": 1500}, {"ttl": "5m", "inputTokens": 500}],
            "outputTokens": 600,
            "totalTokens": 16640,
        },
        {
            "uncached_input_tokens": 40,
            "cache_read_tokens": 14000,
            "cache_write_5m_tokens": 500,
            "cache_write_1h_tokens": 1500,
            "visible_output_tokens": 600,
        },
        (),
    ),
    "OpenAI's models in Bedrock's stream, whose total counts the cache twice": (
        "bedrock.converse_openai",
        {"inputTokens": 5000, "cacheWriteInputTokens": 4990, "outputTokens": 20, "totalTokens": 10010},
        {"uncached_input_tokens": 10, "cache_write_other_tokens": 4990, "visible_output_tokens": 20},
        ("cache_assumed", "lifetime_unknown"),
    ),
    "OpenAI's models in Bedrock's answer, where the cache lies beside": (
        "bedrock.converse_openai",
        {"inputTokens": 2, "cacheWriteInputTokens": 4993, "outputTokens": 20, "totalTokens": 5015},
        {"uncached_input_tokens": 2, "cache_write_other_tokens": 4993, "visible_output_tokens": 20},
        ("lifetime_unknown",),
    ),
    "metrics of Bedrock's InvokeModel stream": (
        "bedrock.invoke",
        {
            "type": "message_stop",
            "amazon-bedrock-invocationMetrics": {
                "inputTokenCount": 7,
                "outputTokenCount": 126,
                "cacheReadInputTokenCount": 14486,
                "cacheWriteInputTokenCount": 0,
                "invocationLatency": 900,
            },
        },
        {"uncached_input_tokens": 7, "cache_read_tokens": 14486, "visible_output_tokens": 126},
        (),
    ),
    "Llama in Bedrock's InvokeModel": (
        "bedrock.invoke",
        {"prompt_token_count": 30, "generation_token_count": 4},
        {"uncached_input_tokens": 30, "visible_output_tokens": 4},
        (),
    ),
    "Cohere bills what it says it bills": (
        "cohere.chat",
        {
            "billed_units": {"input_tokens": Decimal("900.0"), "output_tokens": 200},
            "tokens": {"input_tokens": 1150, "output_tokens": 200},
            "cached_tokens": 64,
        },
        {"uncached_input_tokens": 900, "visible_output_tokens": 200},
        (),
    ),
    "Cohere's rerank": ("cohere.rerank", {"billed_units": {"search_units": 3}}, {"search_units": 3}, ()),
    "vLLM's messages with cache details": (
        "vllm.messages",
        {"input_tokens": 10, "cache_read_input_tokens": 4096, "output_tokens": 5},
        {"uncached_input_tokens": 10, "cache_read_tokens": 4096, "visible_output_tokens": 5},
        (),
    ),
    "SGLang's messages without the cache report": (
        "sglang.messages",
        {"input_tokens": 800, "output_tokens": 5},
        {"uncached_input_tokens": 800, "visible_output_tokens": 5},
        ("cache_unknown",),
    ),
    "SGLang, two choices and reasoning said twice": (
        "sglang.chat",
        {
            "prompt_tokens": 800,
            "completion_tokens": 220,
            "total_tokens": 1020,
            "prompt_tokens_details": {"cached_tokens": 512},
            "completion_tokens_details": {"reasoning_tokens": 20},
            "reasoning_tokens": 20,
        },
        {"uncached_input_tokens": 288, "cache_read_tokens": 512, "visible_output_tokens": 200, "reasoning_tokens": 20},
        (),
    ),
    "TGI": (
        "tgi.chat",
        {"prompt_tokens": 512, "completion_tokens": 64, "total_tokens": 576},
        {"uncached_input_tokens": 512, "visible_output_tokens": 64},
        (),
    ),
    "Ollama": (
        "ollama.chat",
        {"prompt_eval_count": 1300, "eval_count": 240, "load_duration": 5_000_000},
        {"uncached_input_tokens": 1300, "visible_output_tokens": 240},
        (),
    ),
    "llama.cpp, compatible": (
        "llamacpp.chat",
        {
            "prompt_tokens": 1030,
            "completion_tokens": 75,
            "total_tokens": 1105,
            "prompt_tokens_details": {"cached_tokens": 900},
        },
        {"uncached_input_tokens": 130, "cache_read_tokens": 900, "visible_output_tokens": 75},
        (),
    ),
    "llama.cpp, its own: what is held is no hit": (
        "llamacpp.completion",
        {
            "tokens_evaluated": 1030,
            "tokens_predicted": 75,
            "tokens_cached": 1104,
            "timings": {"cache_n": 900, "prompt_n": 130, "predicted_n": 75},
        },
        {"uncached_input_tokens": 130, "cache_read_tokens": 900, "visible_output_tokens": 75},
        (),
    ),
    "LiteLLM, mirrored counts read once": (
        "litellm.standard",
        {
            "prompt_tokens": 21210,
            "completion_tokens": 1240,
            "total_tokens": 22450,
            "prompt_tokens_details": {
                "cached_tokens": 18000,
                "cache_write_tokens": 3000,
                "cache_creation_tokens": 3000,
                "cache_creation_token_details": {"ephemeral_5m_input_tokens": 1000, "ephemeral_1h_input_tokens": 2000},
                "text_tokens": 210,
            },
            "completion_tokens_details": {"reasoning_tokens": 700},
            "cache_read_input_tokens": 18000,
            "cache_creation_input_tokens": 3000,
        },
        {
            "uncached_input_tokens": 210,
            "cache_read_tokens": 18000,
            "cache_write_5m_tokens": 1000,
            "cache_write_1h_tokens": 2000,
            "visible_output_tokens": 540,
            "reasoning_tokens": 700,
        },
        (),
    ),
    "LiteLLM's whole payload": (
        "litellm.standard",
        {
            "prompt_tokens": 9,
            "completion_tokens": 9,
            "total_tokens": 18,
            "response_cost": Decimal("0.1"),
            "metadata": {"usage_object": {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19}},
        },
        {"uncached_input_tokens": 12, "visible_output_tokens": 7},
        (),
    ),
    "OpenTelemetry, old and new names of one count": (
        "otel.gen_ai",
        {
            "gen_ai.usage.input_tokens": 12000,
            "gen_ai.usage.cache_read.input_tokens": 8192,
            "gen_ai.usage.cache_creation.input_tokens": 2560,
            "gen_ai.usage.cache_write.input_tokens": 2560,
            "gen_ai.usage.output_tokens": 1450,
            "gen_ai.usage.reasoning.output_tokens": 900,
        },
        {
            "uncached_input_tokens": 1248,
            "cache_read_tokens": 8192,
            "cache_write_other_tokens": 2560,
            "visible_output_tokens": 550,
            "reasoning_tokens": 900,
        },
        (),
    ),
    "OpenTelemetry before it had those names": (
        "otel.gen_ai",
        {"gen_ai.usage.prompt_tokens": 10, "gen_ai.usage.completion_tokens": 5},
        {"uncached_input_tokens": 10, "visible_output_tokens": 5},
        (),
    ),
}


@pytest.mark.parametrize("what", WORKED)
def test_each_flavour_puts_each_token_into_one_meter(what: str) -> None:
    flavour, usage, quantities, flags = WORKED[what]
    read = counted(flavour, usage)
    assert (read.quantities, read.flags, read.is_priceable) == (quantities, flags, True)


@pytest.mark.parametrize("spelling", ["num_cached_tokens", "prompt_tokens_details", "prompt_token_details"])
def test_mistral_spells_cached_tokens_in_three_ways(spelling: str) -> None:
    cached: Any = 2048 if spelling == "num_cached_tokens" else {"cached_tokens": 2048}
    usage = {"prompt_tokens": 3000, "completion_tokens": 400, "total_tokens": 3400, spelling: cached}
    usage["completion_tokens_details"] = {"reasoning_tokens": 150}
    assert counted("mistral.chat", usage).quantities == dict(zip(USAGE_TOKENS, (952, 2048, 250, 150), strict=True))


def test_a_batch_is_of_the_batch_tier_and_a_fast_answer_of_the_fast_one() -> None:
    line = counted(
        "openai.batch", {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, "service_tier": "default"}
    )
    assert (line.tier, line.is_tier_certain) == ("batch", True)
    usage = {"input_tokens": 1, "output_tokens": 1, "service_tier": "standard"}
    assert counted("anthropic.messages", {**usage, "speed": "standard"}).tier == "standard"
    assert counted("anthropic.messages", {**usage, "service_tier": "batch"}).tier == "batch"
    fast = counted("anthropic.messages", {**usage, "speed": "fast"})
    assert (fast.tier, fast.is_tier_certain) == ("fast", True)
    assert (
        counted("bedrock.converse", {"inputTokens": 1, "outputTokens": 1, "serviceTier": {"type": "flex"}}).tier
        == "flex"
    )
    gemini = {
        "promptTokenCount": 1,
        "candidatesTokenCount": 1,
        "totalTokenCount": 2,
        "trafficType": "PROVISIONED_THROUGHPUT",
    }
    assert counted("gemini.generate_content", gemini).tier == "provisioned"


def test_a_call_of_an_unknown_tool_leaves_the_answer_unpriced() -> None:
    usage = {
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "total_tokens": 2,
        "server_side_tools_used": ["SERVER_SIDE_TOOL_NEW"],
    }
    read = counted("xai.native", usage)
    assert (read.flags, read.is_priceable) == (("tool_unread",), False)


def test_compound_systems_are_priced_model_by_model() -> None:
    read = counted(
        "groq.chat",
        {
            "prompt_tokens": 300,
            "completion_tokens": 30,
            "total_tokens": 330,
            "usage_breakdown": {
                "models": [
                    {"model": "m-small", "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}},
                    {"model": "m-large", "usage": {"prompt_tokens": 200, "completion_tokens": 20, "total_tokens": 220}},
                ]
            },
        },
    )
    assert each_call(read) == [
        ("m-small", {"uncached_input_tokens": 100, "visible_output_tokens": 10}),
        ("m-large", {"uncached_input_tokens": 200, "visible_output_tokens": 20}),
    ]
    assert read.flags == ()


def test_the_last_chunk_of_groq_may_be_sent_whole() -> None:
    counts = {"prompt_tokens": 21, "completion_tokens": 9, "total_tokens": 30}
    assert counted("groq.chat", {"x_groq": {"id": "req_1", "usage": counts}}).quantities == {
        "uncached_input_tokens": 21,
        "visible_output_tokens": 9,
    }
    # Beside an answer that is no stream the same key says how memory was used.
    other = counted("groq.chat", {**counts, "x_groq": {"usage": {"dram_cached_tokens": 5}}})
    assert other.quantities == {"uncached_input_tokens": 21, "visible_output_tokens": 9}


def test_a_hit_in_litellms_own_cache_was_avoided() -> None:
    payload = {"cache_hit": True, "prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19}
    assert counted("litellm.standard", payload).is_cache_hit
    assert not counted("litellm.standard", {**payload, "cache_hit": False}).is_cache_hit


def test_each_response_of_a_session_is_a_call() -> None:
    frames = [
        {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
        {"input_tokens": 25, "output_tokens": 7, "total_tokens": 32, "input_token_details": {"cached_tokens": 10}},
    ]
    read = read_frames("openai.realtime", frames)
    assert each_call(read) == [  # type: ignore[arg-type]
        (None, {"uncached_input_tokens": 10, "visible_output_tokens": 5}),
        (None, {"uncached_input_tokens": 15, "cache_read_tokens": 10, "visible_output_tokens": 7}),
    ]
    assert read_frames("openai.realtime", [None, {}]) is None
    heard = read_frames("openai.realtime", [frames[0], {"type": "duration", "seconds": 3}])
    assert isinstance(heard, Counted)
    assert "transcription_unread" in heard.flags
    assert not heard.is_priceable


def test_a_stream_that_opens_with_zeros_says_what_it_says_last() -> None:
    zeros = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    last = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    assert fold_frames("openai.compatible", [zeros, zeros, last, zeros]) == last
    assert fold_frames("openai.compatible", [zeros]) == zeros


# What each record reads, with its version: whoever changes a record raises the version, so that `events reread` knows.
VERSIONS = Path(__file__).with_name("flavour_versions.json")


def test_a_record_that_reads_differently_has_another_version() -> None:
    known = json.loads(VERSIONS.read_text())
    now = {
        name: [flavour.version, sha256(repr(replace(flavour, wrote_by="", source="")).encode()).hexdigest()[:16]]
        for name, flavour in FLAVOURS.items()
    }
    assert now == known, "raise the version of what changed, then write these lines to flavour_versions.json"


# --- Properties, for every flavour ------------------------------------------------------------------------------------

COUNTS = st.one_of(st.none(), st.integers(0, 50), st.integers(0, 2**40))
MODALITIES = st.lists(
    st.fixed_dictionaries({"modality": st.sampled_from(["TEXT", "IMAGE", "AUDIO", "NEW"]), "tokenCount": COUNTS})
)
LIFETIMES = st.lists(
    st.fixed_dictionaries({"ttl": st.sampled_from(["5m", "1h", "new"]), "inputTokens": st.integers(0, 50)})
)
TOOLS = st.lists(st.sampled_from(["SERVER_SIDE_TOOL_WEB_SEARCH", "SERVER_SIDE_TOOL_MCP"]))


def usages(places: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with counts wherever a record looks for one, each there or not."""
    shapes: dict[str, Any] = {}
    for key, place in places.items():
        if not isinstance(place, str):
            shapes[key] = usages(place)
        elif place.endswith("/list"):
            shapes[key] = LIFETIMES if "writes" in place else TOOLS if "called" in place else MODALITIES
        else:
            shapes[key] = COUNTS
    return st.fixed_dictionaries({}, optional=shapes)


ANY_USAGE = st.sampled_from(sorted(FLAVOURS)).flatmap(
    lambda name: st.tuples(st.just(name), usages(_PLANS[name].places))
)


@settings(max_examples=examples(800))
@given(ANY_USAGE)
def test_quantities_are_never_negative_and_reproduce_the_total(case: tuple[str, dict[str, Any]]) -> None:
    name, usage = case
    flavour = FLAVOURS[name]
    read = read_usage(name, usage)
    if isinstance(read, Refused):
        return
    quantities = read.quantities or {}
    assert all(count > 0 and meter in METERS for meter, count in quantities.items())
    if "usage_incomplete" in read.flags:
        assert not read.is_priceable
        return
    assert (read.input_tokens, read.output_tokens) == (input_tokens(quantities), output_tokens(quantities))
    found: dict[str, Any] = {}
    _gather(_PLANS[name].places, usage, found)
    totals = [found[slot] for slot in ("total", "#1total") if slot in found]
    if not totals or "total_differs" in read.flags:
        return
    twice = sum(quantities.get(meter, 0) for meter in flavour.twice_in_total)
    lacking = sum(quantities.get(meter, 0) for meter in flavour.outside_total)
    unexplained = (read.notes or {}).get("unexplained_tokens", 0)
    ours = read.input_tokens + read.output_tokens + unexplained
    assert totals[0] in (ours, ours + twice, ours - lacking)
    assert read.is_priceable or unexplained or "tool_unread" in read.flags or flavour.unread


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def spoilt(places: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with anything at all where a record looks for a count."""
    shapes = {key: ANYTHING if isinstance(place, str) else ANYTHING | spoilt(place) for key, place in places.items()}
    return st.fixed_dictionaries(
        {}, optional={**shapes, "iterations": ANYTHING, "cache_hit": ANYTHING, "x_groq": ANYTHING}
    )


@settings(max_examples=examples(300))
@given(
    st.sampled_from(sorted(FLAVOURS)).flatmap(
        lambda name: st.tuples(st.just(name), st.lists(spoilt(_PLANS[name].places)))
    )
)
def test_whatever_stands_in_a_usage_object_is_counted_or_refused(case: tuple[str, list[dict[str, Any]]]) -> None:
    name, frames = case
    for frame in frames:
        assert isinstance(read_usage(name, frame), Counted | Refused)
    assert isinstance(read_frames(name, frames), Counted | Refused | None)


GROWING = st.lists(st.integers(1, 100), min_size=1, max_size=8)


@pytest.mark.parametrize(
    "name", [name for name, flavour in FLAVOURS.items() if flavour.stream == "last_stated" and flavour.total]
)
@given(grown=GROWING, repeats=st.integers(1, 3))
def test_a_streams_running_counts_end_in_one_total(name: str, grown: list[int], repeats: int) -> None:
    """Nulls, empty objects and zeros before the end, each count said once or thrice: the sum is what the last one says."""
    flavour = FLAVOURS[name]
    keys = flavour.input.at[:1] + flavour.output.at[:1] + flavour.total[:1]

    def frame(prompt: int, answer: int) -> dict[str, Any]:
        values = [prompt, prompt + answer] if not flavour.output.at else [prompt, answer, prompt + answer]
        usage: dict[str, Any] = {}
        for place, value in zip(keys, values, strict=True):
            *parents, last = _keys(place)
            holder = usage
            for parent in parents:
                holder = holder.setdefault(parent, {})
            holder[last] = value
        return usage

    answers = [sum(grown[: n + 1]) if flavour.output.at else 0 for n in range(len(grown))]
    frames: list[dict[str, Any] | None] = [None, {}]
    for answer in answers:
        frames += [frame(7, answer)] * repeats
    frames += [{}, None]
    read = read_frames(name, frames)
    assert isinstance(read, Counted)
    assert (read.input_tokens, read.output_tokens) == (7, answers[-1])


@given(st.permutations([{"input_tokens": n, "output_tokens": n + 1, "total_tokens": 2 * n + 1} for n in range(5)]))
def test_responses_of_a_session_add_up_in_any_order(frames: list[dict[str, Any]]) -> None:
    read = read_frames("openai.realtime", frames)
    assert isinstance(read, Counted)
    assert (read.input_tokens, read.output_tokens, len(read.calls)) == (10, 15, 5)


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
