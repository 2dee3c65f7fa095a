"""From a sender's bytes to priced rows: what each provider's usage means, held to amounts. Each name is a case of the issue."""

from decimal import Decimal
from typing import Any

from ledger.price_book import Price
from tests.factories import make_event
from tests.ledger.prices import band, make_card, per_million, variant
from tests.support.ledger import Ledger

ANTHROPIC = {"provider": "anthropic", "model": "m-add", "requested_model": "m-add", "flavour": "anthropic.messages"}
GEMINI = {"provider": "google", "model": "m-gem", "requested_model": "m-gem", "flavour": "gemini.generate_content"}


async def lines(ledger: Ledger) -> dict[str, Decimal]:
    """The amounts of the cost book by meter, over all rows; together they are the cost, to the digit."""
    rows = ledger.rows("select meter, sum(amount) from ledger.entry_lines where book = 'cost' group by meter")
    assert sum((amount for _, amount in rows), Decimal(0)) == ledger.total("cost")
    return dict(rows)


async def claude(ledger: Ledger, **rates: str) -> None:
    await ledger.add_price("m-add", provider="anthropic", **{"input": "3.00", "output": "15.00", **rates})


async def test_b001_cached_tokens_are_part_of_the_prompt(ledger: Ledger) -> None:
    """500 x 2.00 + 17,500 x 0.50 + 400 x 8.00 per million; not 0.04795, which counts the cached tokens twice."""
    await ledger.add_price(input="2.00", cached="0.50", output="8.00")
    usage = {"prompt_tokens": 18000, "completion_tokens": 400, "total_tokens": 18400}
    await ledger.post(make_event(usage={**usage, "prompt_tokens_details": {"cached_tokens": 17500}}))
    assert await lines(ledger) == {
        "uncached_input_tokens": Decimal("0.001"),
        "cache_read_tokens": Decimal("0.00875"),
        "visible_output_tokens": Decimal("0.0032"),
    }
    assert ledger.total() == Decimal("0.01295")
    assert ledger.rows("select input_tokens, input_tokens + output_tokens from ledger.entries") == [(18000, 18400)]


async def test_b002_cache_reads_stand_beside_the_input(ledger: Ledger) -> None:
    """7 + 300 + 96,000 tokens of input; subtracting the reads would make money negative."""
    await claude(ledger, write_5m="3.75", cached="0.30")
    usage = {
        "input_tokens": 7,
        "cache_creation_input_tokens": 300,
        "cache_read_input_tokens": 96000,
        "output_tokens": 120,
    }
    await ledger.post(make_event(**ANTHROPIC, usage=usage))
    assert await lines(ledger) == {
        "uncached_input_tokens": Decimal("0.000021"),
        "cache_write_other_tokens": Decimal("0.001125"),
        "cache_read_tokens": Decimal("0.0288"),
        "visible_output_tokens": Decimal("0.0018"),
    }
    assert ledger.total() == Decimal("0.031746")
    assert ledger.value("select input_tokens from ledger.entries") == 96307


async def test_b003_written_tokens_are_charged_once_at_the_write_rate(ledger: Ledger) -> None:
    await claude(ledger, write_5m="3.75", cached="0.30")
    usage = {
        "input_tokens": 4,
        "cache_creation_input_tokens": 21000,
        "cache_read_input_tokens": 0,
        "output_tokens": 640,
    }
    await ledger.post(make_event(**ANTHROPIC, usage=usage))
    assert (await lines(ledger))["cache_write_other_tokens"] == Decimal("0.07875")
    assert ledger.total() == Decimal("0.088362")


async def test_b006_one_hour_writes_have_their_own_rate(ledger: Ledger) -> None:
    await claude(ledger, write_5m="3.75", write_1h="6.00", cached="0.30")
    usage = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 200000,
        "cache_read_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 50000, "ephemeral_1h_input_tokens": 150000},
        "output_tokens": 1000,
    }
    await ledger.post(make_event(**ANTHROPIC, usage=usage))
    found = await lines(ledger)
    assert (found["cache_write_5m_tokens"], found["cache_write_1h_tokens"]) == (Decimal("0.1875"), Decimal("0.9"))
    assert ledger.total() == Decimal("1.10253")


async def test_b008_thoughts_are_charged_as_output(ledger: Ledger) -> None:
    """2,000 x 2.50 + 120 x 0.30 per million; the candidates alone would be 0.000786."""
    await ledger.add_price("m-gem", provider="google", input="0.30", output="2.50")
    usage = {"promptTokenCount": 120, "candidatesTokenCount": 300, "thoughtsTokenCount": 1700, "totalTokenCount": 2120}
    await ledger.post(make_event(**GEMINI, usage=usage))
    assert ledger.total() == Decimal("0.005036")
    assert ledger.rows("select output_tokens, reasoning_tokens from ledger.entries") == [(2000, 1700)]


async def test_b009_reasoning_is_inside_the_completion(ledger: Ledger) -> None:
    await ledger.add_price(input="1.25", output="10.00")
    usage = {"prompt_tokens": 200, "completion_tokens": 2000, "total_tokens": 2200}
    await ledger.post(make_event(usage={**usage, "completion_tokens_details": {"reasoning_tokens": 1500}}))
    assert ledger.total() == Decimal("0.02025")
    assert ledger.rows("select output_tokens, reasoning_tokens from ledger.entries") == [(2000, 1500)]


async def test_b010_a_total_above_its_parts_is_marked_and_has_no_amount(ledger: Ledger) -> None:
    await ledger.add_price("m-gem", provider="google", input="0.30", output="2.50")
    usage = {"promptTokenCount": 1000, "candidatesTokenCount": 200, "totalTokenCount": 2600}
    await ledger.post(make_event(**GEMINI, usage=usage))
    assert ledger.rows("select charge_amount, usage_flags, unpriced_meters, reported from ledger.entries") == [
        (None, ["total_above_parts"], ["charge:usage", "cost:usage"], {"unexplained_tokens": 1400})
    ]


async def test_b012_the_last_running_count_of_a_stream_replaces_the_first(ledger: Ledger) -> None:
    """31 x 3.00 + 22 x 15.00 per million; 23 output tokens would be 0.000438."""
    await claude(ledger)
    frames = [{"input_tokens": 31, "output_tokens": 1}, {"output_tokens": 22}]
    await ledger.post(make_event(**ANTHROPIC, usage_frames=frames))
    assert ledger.total() == Decimal("0.000423")


async def test_b013_usage_on_every_chunk_is_no_series_of_increments(ledger: Ledger) -> None:
    """12 x 0.30 + 1,000 x 2.50 per million; added up it would be 0.051394."""
    await ledger.add_price("m-gem", provider="google", input="0.30", output="2.50")
    frames = [{"promptTokenCount": 12, "candidatesTokenCount": 25 * k} for k in range(1, 41)]
    await ledger.post(make_event(**GEMINI, usage_frames=frames))
    assert ledger.total() == Decimal("0.0025036")


async def test_b022_a_fallback_is_priced_attempt_by_attempt_each_at_its_own_model(ledger: Ledger) -> None:
    """0.515 + 0.2726 + 0: the attempt that was refused before any output is free; at one model it would be 0.5651."""
    for model, read, fresh, output in (("m-big", "1.00", "10.00", "50.00"), ("m-mid", "0.50", "5.00", "25.00")):
        ledger.add_model(model, provider="anthropic")
        rates = per_million(input=fresh, cached=read, output=output)
        rules = {"refusal_before_output": "free"}
        await ledger.add_card(make_card(rates, model=model, provider="anthropic", billing_rules=rules))
    await ledger.add_card(make_card(book="charge", model=None, provider="anthropic", markup=Decimal(1)))
    usage = {
        "iterations": [
            {"model": "m-big", "input_tokens": 0, "cache_read_input_tokens": 500000, "output_tokens": 300},
            {"model": "m-mid", "input_tokens": 20, "cache_read_input_tokens": 500000, "output_tokens": 900},
            {
                "model": "m-big",
                "input_tokens": 7000,
                "cache_read_input_tokens": 0,
                "output_tokens": 0,
                "stop_reason": "refusal",
            },
        ]
    }
    await ledger.post(make_event(**{**ANTHROPIC, "model": "m-mid"}, usage=usage))
    rows = ledger.rows(
        "select model, charge_amount, cost_amount, input_tokens, request_count from ledger.entries order by entry_no"
    )
    assert rows == [
        ("m-big", Decimal("0.515"), Decimal("0.515"), 500000, 1),
        ("m-mid", Decimal("0.2726"), Decimal("0.2726"), 500020, 0),
        ("m-big", Decimal(0), Decimal(0), 7000, 0),
    ]
    assert ledger.total() == Decimal("0.7876")
    assert sum((await lines(ledger)).values()) == Decimal("0.7876")


async def test_each_call_inside_an_answer_has_a_band_of_its_own(ledger: Ledger) -> None:
    """Two calls of 150,000 tokens stay below a threshold of 200,000 that their sum is above."""
    ledger.add_model("m-add", provider="anthropic")
    high = band(">", 200_000, input="6.00", output="22.50")
    await ledger.add_card(
        make_card(per_million(input="3.00", output="15.00"), model="m-add", provider="anthropic", bands=(high,))
    )
    call = {"type": "message", "input_tokens": 150_000, "output_tokens": 0}
    usage = {"input_tokens": 300_000, "output_tokens": 0, "iterations": [call, call]}
    await ledger.post(make_event(**ANTHROPIC, usage=usage))
    assert ledger.total("cost") == Decimal("0.9")


async def test_b036_audio_output_has_its_own_rate(ledger: Ledger) -> None:
    await ledger.add_price("m-audio", provider="azure", input="2.50", output="10.00", output_audio="80.00")
    usage = {
        "prompt_tokens": 20,
        "completion_tokens": 600,
        "completion_tokens_details": {"text_tokens": 100, "audio_tokens": 500},
    }
    await ledger.post(make_event(provider="azure", model="m-audio", requested_model="m-audio", usage=usage))
    assert await lines(ledger) == {
        "uncached_input_tokens": Decimal("0.00005"),
        "visible_output_tokens": Decimal("0.001"),
        "visible_output_audio_tokens": Decimal("0.04"),
    }
    assert ledger.total() == Decimal("0.04105")


async def test_b037_text_output_of_an_image_model_is_text(ledger: Ledger) -> None:
    rates = {"input": "5.00", "input_image": "8.00", "output": "10.00", "output_image": "32.00"}
    await ledger.add_price("m-img", provider="azure", **rates)
    usage = {
        "prompt_tokens": 340,
        "completion_tokens": 6300,
        "prompt_tokens_details": {"text_tokens": 40, "image_tokens": 300},
        "completion_tokens_details": {"text_tokens": 300, "image_tokens": 6000},
    }
    await ledger.post(make_event(provider="azure", model="m-img", requested_model="m-img", usage=usage))
    assert ledger.total() == Decimal("0.1976")


async def test_b039_a_rerank_costs_one_query_even_if_the_node_reports_only_tokens(ledger: Ledger) -> None:
    ledger.add_model("m-rerank", provider="vllm")
    await ledger.add_card(make_card({"search_units": Price(Decimal("0.0015"), 1)}, model="m-rerank", provider="vllm"))
    call: dict[str, Any] = {
        "provider": "vllm",
        "model": "m-rerank",
        "requested_model": "m-rerank",
        "flavour": "vllm.rerank",
    }
    await ledger.post(make_event(**call, usage={"total_tokens": 450}))
    assert ledger.rows("select cost_amount, other_quantities, reported from ledger.entries") == [
        (Decimal("0.0015"), {"search_units": 1}, {"tokens": 450})
    ]


async def test_b039_queries_without_a_price_for_them_are_unpriced_and_not_zero(ledger: Ledger) -> None:
    await ledger.add_price("m-rerank", provider="vllm", input="0.02")
    call: dict[str, Any] = {
        "provider": "vllm",
        "model": "m-rerank",
        "requested_model": "m-rerank",
        "flavour": "vllm.rerank",
    }
    await ledger.post(make_event(**call, usage={"total_tokens": 450}))
    assert ledger.rows("select cost_amount, unpriced_meters from ledger.entries") == [
        (None, ["charge:search_units", "cost:search_units"])
    ]


async def test_b041_embeddings_are_input_only_and_still_usage(ledger: Ledger) -> None:
    ledger.add_model("m-embed")
    await ledger.add_card(make_card(per_million(input="0.02"), model="m-embed", missing_component="use_input_rate"))
    call: dict[str, Any] = {"model": "m-embed", "requested_model": "m-embed", "flavour": "openai.embeddings"}
    await ledger.post(make_event(**call, usage={"prompt_tokens": 5000, "total_tokens": 5000}))
    assert ledger.rows("select cost_amount, input_tokens, output_tokens, usage_flags from ledger.entries") == [
        (Decimal("0.0001"), 5000, 0, [])
    ]


async def test_a_hit_in_the_senders_own_cache_costs_nothing_and_says_what_it_avoided(ledger: Ledger) -> None:
    await ledger.add_price(input="2.00", output="8.00")
    payload = {"cache_hit": True, "prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    await ledger.post(make_event(flavour="litellm.standard", usage=payload))
    assert ledger.rows(
        "select charge_amount, avoided_tokens, input_tokens, request_count, cache_result, request_key from ledger.entries"
    ) == [(Decimal(0), 110, 0, 1, "exact_hit", None)]


async def test_a_line_of_a_batch_has_the_batch_price_whatever_tier_the_answer_names(ledger: Ledger) -> None:
    ledger.add_model()
    half = variant("batch", input="1.00", output="4.00")
    await ledger.add_card(make_card(per_million(input="2.00", output="8.00"), variants=(half,)))
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    await ledger.post(make_event("a", flavour="openai.batch", usage=usage, service_tier="default"))
    await ledger.post(make_event("b", usage=usage, service_tier="default"))
    assert ledger.rows("select service_tier, cost_amount from ledger.entries order by request_id") == [
        ("batch", Decimal("0.00014")),
        ("default", Decimal("0.00028")),
    ]
