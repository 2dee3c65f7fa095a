"""Own nodes against API list prices, and what a million tokens on them cost: each number by hand, each unknown with its reason."""

from decimal import Decimal
from typing import Any

from ledger.price_book import Price
from tests.dbt.conftest import Marts
from tests.dbt.test_gpu import PLATFORM, add_rates, rate, request, set_up, window
from tests.ledger.prices import make_card, per_million

MARTS = ("+fct_self_hosted_breakeven", "+fct_self_hosted_cost_daily")
OSS = {"provider": "vllm", "model": "openai/gpt-oss-120b"}
MILLION = 1_000_000


async def offer(marts: Marts, provider: str, model: str, since: str = "2026-01-01T00:00:00Z", **card: Any) -> None:
    """A card of an API offer; prices by a million tokens."""
    prices = {name: card.pop(name) for name in ("input", "cached", "output") if name in card}
    if not marts.ledger.value("select count(*) from ledger.models where (provider, model) = (%s, %s)", provider, model):
        marts.ledger.add_model(model, provider=provider)
    made = make_card(per_million(**prices), provider=provider, model=model, effective_at=since, **card)
    await marts.ledger.add_card(made)


def oss(event_id: str, end: str, into: int, out: int, cached: int = 0, **overrides: Any) -> dict[str, Any]:
    usage = {
        "prompt_tokens": into, "completion_tokens": out, "total_tokens": into + out,
        "prompt_tokens_details": {"cached_tokens": cached},
    }  # fmt: skip
    return request(event_id, end, into, out, **{"usage": usage, **OSS, **overrides})


def breakeven(marts: Marts, *columns: str) -> list[tuple[Any, ...]]:
    listed = ", ".join(columns)
    return marts.ledger.rows(
        f"select to_char(starts_at, 'HH24:MI'), model, offer_provider, {listed} from marts.fct_self_hosted_breakeven"
        " order by 1, 2, 3, cost_state, currency"
    )


def costs(marts: Marts, mart: str, at: str, *columns: str) -> list[tuple[Any, ...]]:
    return marts.ledger.rows(f"select {at}, tenant_id, {', '.join(columns)} from marts.{mart} order by 1, 2")


async def test_an_hour_is_held_against_the_list_prices_of_its_time(marts: Marts) -> None:
    """A node for 36 USD, two calls at once for 10 s: 0.025 and 0.075 in use, and 35.90 idle, a quarter and three quarters of it.

    3,600,000 in at 0.15, 400,000 cached at 0.075, 400,000 out at 0.60 a million: 0.54 + 0.03 + 0.24 = 0.81. 36 / 0.81 times the
    4,400,000 tokens would have made them equal: 195,555,555.5. The other offer has no price of cached input, its card says to
    take that of input: 4,000,000 x 0.15 + 0.24 = 0.84. At ten the first one's price doubles.
    """
    await set_up(marts)
    await marts.ledger.add_price("openai/gpt-oss-120b", provider="vllm", input="1.00", output="2.00", cached="1.00")
    await add_rates(marts, rate())
    await offer(marts, "groq", "openai/gpt-oss-120b", input="0.15", cached="0.075", output="0.60")
    await offer(
        marts, "groq", "openai/gpt-oss-120b", "2026-01-15T10:00:00Z", input="0.30", cached="0.15", output="1.20"
    )
    await offer(
        marts, "together", "openai/gpt-oss-120b", input="0.15", output="0.60", missing_component="use_side_rate"
    )
    await marts.post(
        window("w-1", "09:00:00", "11:00:00", **OSS),
        oss("e-1", "09:30:10", MILLION, MILLION // 10, 400_000),
        oss("e-2", "09:30:10", 3 * MILLION, 3 * MILLION // 10, tenant_id="t-beta"),
        oss("e-3", "10:30:10", MILLION, 0),
    )
    marts.roll_up(*MARTS, tests=True)
    amounts = ("used_amount", "idle_amount", "list_amount", "break_even_ratio", "break_even_tokens", "saved_amount")
    nine, ten = (Decimal("0.1"), Decimal("35.9")), (Decimal("0.1"), Decimal("35.9"))
    assert breakeven(marts, *amounts) == [
        ("09:00", OSS["model"], "groq", *nine, Decimal("0.81"), Decimal("44.444444"), 195_555_556, Decimal("-35.19")),
        ("09:00", OSS["model"], "together", *nine, Decimal("0.84"), Decimal("42.857143"), 188_571_429, Decimal("-35.16")),
        ("10:00", OSS["model"], "groq", *ten, Decimal("0.3"), 120, 120_000_000, Decimal("-35.7")),
        ("10:00", OSS["model"], "together", *ten, Decimal("0.15"), 240, 240_000_000, Decimal("-35.85")),
    ]  # fmt: skip
    counts = ("tenant_count", "request_count", "uncached_input_tokens", "cache_read_tokens", "output_tokens")
    assert breakeven(marts, *counts)[0][3:] == (2, 2, 3_600_000, 400_000, 400_000)

    # 1,100,000 and 3,300,000 tokens; 9 and 27 USD with idle time; 1.20 and 3.60 at standard rates.
    ratios = ("used_amount", "idle_amount", "used_per_million", "with_idle_per_million", "standard_per_million")
    each = (Decimal("0.022727"), Decimal("8.181818"), Decimal("1.090909"))
    assert costs(marts, "fct_self_hosted_cost_hourly", "to_char(starts_at, 'HH24:MI')", *ratios)[:2] == [
        ("09:00", "t-alpha", Decimal("0.025"), Decimal("8.975"), *each),
        ("09:00", "t-beta", Decimal("0.075"), Decimal("26.925"), *each),
    ]


async def test_the_idle_night_of_a_node_is_in_the_day_of_those_who_used_it(marts: Marts) -> None:
    """Two hours, used in one: by the hour 36 of idle time stay with the owner; by the day all 72 are with the one tenant. A node
    that nobody used is its owner's in both."""
    await set_up(marts)
    await add_rates(marts, rate())
    await marts.post(
        window("w-1", "09:00:00", "11:00:00"),
        window("w-2", "09:00:00", "10:00:00", node_id="gpu-8"),
        request("e-1", "09:30:10", 400_000, 100_000),
    )
    marts.roll_up(*MARTS, tests=True)
    columns = ("used_amount", "idle_amount", "used_per_million", "with_idle_per_million")
    assert costs(marts, "fct_self_hosted_cost_hourly", "to_char(starts_at, 'HH24:MI')", *columns) == [
        ("09:00", "t-alpha", Decimal("0.1"), Decimal("35.9"), Decimal("0.2"), 72),
        ("09:00", PLATFORM, 0, 36, None, None),
        ("10:00", PLATFORM, 0, 36, None, None),
    ]
    assert costs(marts, "fct_self_hosted_cost_daily", "utc_date::text", *columns) == [
        ("2026-01-15", "t-alpha", Decimal("0.1"), Decimal("71.9"), Decimal("0.2"), 144),
        ("2026-01-15", PLATFORM, 0, 36, None, None),
    ]


async def test_what_cannot_be_compared_says_why(marts: Marts) -> None:
    """Each reason once, and amounts only where they are known."""
    await set_up(marts)
    await add_rates(marts, rate(), rate(gpu_count=2, currency="EUR"))
    await offer(marts, "groq", "openai/gpt-oss-120b", input="0.15", output="0.60")
    await offer(marts, "groq", "openai/gpt-oss-120b", "2026-01-15T13:30:00Z", input="0.20", output="0.80")
    nothing = Price(Decimal(0), 1, is_free=True)
    await marts.ledger.add_card(
        make_card({"uncached_input_tokens": nothing}, provider="groq", model="llama-3.3-70b-versatile")
    )
    marts.ledger.add_model("llama-3.3-70b-versatile", provider="groq")
    free = {"provider": "vllm", "model": "meta-llama/Llama-3.3-70B-Instruct"}
    for model in (OSS["model"], "Qwen/Qwen3-32B", free["model"]):
        marts.ledger.add_model(model, provider="vllm")
    await marts.post(
        window("w-1", "09:00:00", "11:00:00", **OSS),
        window("w-2", "09:00:00", "10:00:00", node_id="gpu-8", gpu_count=4),
        window("w-3", "09:00:00", "10:00:00", node_id="gpu-9", gpu_count=2),
        window("w-4", "12:00:00", "14:00:00"),
        oss("known", "09:10:00", MILLION, 0),
        oss("no-rate", "09:10:00", MILLION, 0, node_id="gpu-8"),
        oss("other-currency", "09:10:00", MILLION, 0, node_id="gpu-9"),
        request("no-offer", "09:10:00", MILLION, 0),
        oss("no-price", "09:10:00", MILLION, 0, model="Qwen/Qwen3-32B"),
        oss("free", "09:10:00", MILLION, 0, **free),
        oss("missing", "09:10:00", 0, 0, usage=..., flavour=...),
        oss("no-window", "11:30:00", MILLION, 0),
        oss("unpriced", "12:10:00", MILLION, 0, MILLION),
        oss("changed", "13:10:00", MILLION, 0),
    )
    marts.roll_up(*MARTS, tests=True)
    listed = ("currency", "unknown_because", "list_unpriced_tokens", "list_amount", "node_amount is null")
    cents = Decimal("0.15")
    assert [row for row in breakeven(marts, *listed) if row[2] != "together"] == [
        ("09:00", "Qwen/Qwen3-32B", "groq", "USD", "no_list_price", MILLION, None, False),
        ("09:00", "m-own", "", "USD", "no_offer", MILLION, None, False),
        ("09:00", free["model"], "groq", "USD", "list_price_is_zero", 0, 0, False),
        ("09:00", OSS["model"], "groq", "EUR", "currencies_differ", 0, cents, False),
        ("09:00", OSS["model"], "groq", "USD", "", 0, cents, False),
        ("09:00", OSS["model"], "groq", "", "no_rate", 0, cents, True),
        ("10:00", OSS["model"], "groq", "USD", "no_tokens", 0, 0, False),
        ("11:00", OSS["model"], "groq", "", "no_window", 0, cents, True),
        ("12:00", OSS["model"], "groq", "USD", "tokens_unpriced", MILLION, None, False),
        ("13:00", OSS["model"], "groq", "USD", "list_price_changed", 0, None, False),
    ]
    assert {row[3] for row in breakeven(marts, "unknown_because") if row[2] == "together"} == {
        "no_list_price", "no_rate", "no_window",
    }  # fmt: skip
    missing = [row for row in breakeven(marts, "currency", "usage_missing_count") if row[4] and row[2] == "groq"]
    assert missing == [("09:00", OSS["model"], "groq", "USD", 1)]


async def test_no_reader_of_a_tenant_sees_what_nodes_cost(marts: Marts) -> None:
    await set_up(marts)
    marts.roll_up(*MARTS)
    for name in ("fct_self_hosted_cost_hourly", "fct_self_hosted_cost_daily", "fct_self_hosted_breakeven"):
        assert marts.ledger.value(f"select to_regclass('marts.own_{name}')") is None
        assert not marts.ledger.value(f"select has_table_privilege('tallystick_reader', 'marts.{name}', 'select')")
