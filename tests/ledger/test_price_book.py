"""The price book answers with the card in force then, the most specific one first, or says why there is none."""

from decimal import Decimal
from typing import Any

import pytest

from ledger.errors import CardRefused
from ledger.price_book import (
    Band,
    Body,
    Price,
    PriceBook,
    RateSet,
    Selectors,
    Variant,
    body_from_row,
    body_to_row,
)
from ledger.pricing import amount_of
from ledger.times import parse_rfc3339
from tests.ledger.prices import (
    band,
    make_card,
    per_million,
    priced,
    quantities,
    rate_set,
    selectors,
    variant,
    why_unpriced,
)

# --- Bands -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "amount"), [(199_999, "0.25999875"), (200_000, "0.26"), (200_001, "0.5150025"), (260_000, "0.665")]
)
def test_b027_above_the_threshold_the_whole_request_moves_to_the_high_rates(prompt: int, amount: str) -> None:
    card = make_card(
        per_million(input="1.25", output="10.00"), bands=(band(">", 200_000, input="2.50", output="15.00"),)
    )
    assert priced([card], quantities(input=prompt, output=1000)).amount == Decimal(amount)


def test_b028_bands_are_neither_marginal_nor_per_session() -> None:
    card = make_card(
        per_million(input="3.00", output="15.00"), bands=(band(">", 200_000, input="6.00", output="22.50"),)
    )
    assert priced([card], quantities(input=320_000, output=2000)).amount == Decimal("1.965")
    one = priced([card], quantities(input=90_000)).amount
    assert one is not None
    assert 10 * one == Decimal("2.7")


@pytest.mark.parametrize(("operator", "amount"), [(">=", "0.252"), (">", "0.126")])
def test_b029_the_operator_of_a_threshold_is_data_of_the_price(operator: Any, amount: str) -> None:
    card = make_card(
        per_million(input="1.25", cached="0.20", output="2.50"),
        bands=(band(operator, 200_000, input="2.50", cached="0.40", output="5.00"),),
    )
    assert priced([card], quantities(input=80_000, cached=120_000, output=800)).amount == Decimal(amount)


def test_b030_all_components_of_a_request_are_in_one_band() -> None:
    card = make_card(
        per_million(input="3.00", write_5m="3.75", cached="0.30", output="15.00"),
        bands=(band(">", 200_000, input="6.00", write_5m="7.50", cached="0.60", output="22.50"),),
    )
    assert priced([card], quantities(input=205_000, write_5m=7000, output=100)).amount == Decimal("1.28475")


def test_a_fee_that_a_band_does_not_name_stays() -> None:
    rates = per_million(input="1") | {"web_search_calls": Price(Decimal(10), 1000)}
    card = make_card(rates, bands=(band(">", 10, input="2"),))
    assert priced([card], quantities(input=11, web_search_calls=1)).amount == Decimal("0.010022")


# --- Tiers, regions, hours -------------------------------------------------------------------------------------------


def test_b032_batch_usage_has_the_batch_rates() -> None:
    card = make_card(
        per_million(input="2.50", output="10.00"), variants=(variant("batch", input="1.25", output="5.00"),)
    )
    counts = quantities(input=80_000, output=20_000)
    assert priced([card], counts, service_tier="batch").amount == Decimal("0.2")
    assert priced([card], counts).amount == Decimal("0.4")


@pytest.mark.parametrize(("tier", "amount"), [("default", "0.00625"), (None, "0.00625"), ("priority", "0.0125")])
def test_b033_the_tier_that_is_asked_for_sets_the_price(tier: str | None, amount: str) -> None:
    card = make_card(
        per_million(input="1.25", output="10"), variants=(variant("priority", input="2.50", output="20.00"),)
    )
    assert priced([card], quantities(input=1000, output=500), service_tier=tier).amount == Decimal(amount)


def test_b034_batch_and_cached_rates_combine() -> None:
    card = make_card(
        per_million(input="2.00", cached="0.50", output="8.00"),
        variants=(variant("batch", input="1.00", cached="0.25", output="4.00"),),
    )
    counts = quantities(input=2000, cached=8000, output=1000)
    assert priced([card], counts, service_tier="batch").amount == Decimal("0.008")


def test_a_variant_replaces_only_the_meters_that_it_names() -> None:
    card = make_card(per_million(input="2", output="8"), variants=(variant("batch", input="1"),))
    assert priced([card], quantities(input=1, output=1), service_tier="batch").amount == Decimal("0.000009")


def test_a_tier_without_rates_is_unpriced_and_not_standard() -> None:
    card = make_card(per_million(input="2"))
    assert why_unpriced([card], service_tier="priority") == "no_rate_for_service_tier"
    lenient = make_card(per_million(input="2"), other_tiers="use_base_rates")
    assert rate_set([lenient], service_tier="priority").rates["uncached_input_tokens"].price == Decimal(2)
    declared = make_card(per_million(input="2"), variants=(Variant(service_tiers=("scale",)),))
    assert rate_set([declared], service_tier="scale").rates["uncached_input_tokens"].price == Decimal(2)


def test_of_two_variants_that_hold_the_first_names_the_price() -> None:
    card = make_card(
        per_million(input="4", output="8"),
        variants=(
            variant("batch", regions=("eu",), input="2.2"),
            variant("batch", input="2", output="4"),
            variant(regions=("eu",), input="4.4", output="8.8"),
        ),
    )
    both = rate_set([card], service_tier="batch", region="eu")
    assert [rate.price for rate in both.rates.values()][:2] == [Decimal("2.2"), Decimal(4)]
    assert both.selectors == {"service_tier": "batch", "region": "eu"}
    assert rate_set([card], region="eu").rates["uncached_input_tokens"].price == Decimal("4.4")
    assert rate_set([card], region="us").rates["uncached_input_tokens"].price == Decimal(4)


@pytest.mark.parametrize(
    ("clock", "price"),
    [("16:29:59.999999", "0.27"), ("16:30:00", "0.135"), ("16:30:00.000001", "0.135"), ("23:59:59", "0.135"), ("00:00:00", "0.135"), ("00:29:59.999999", "0.135"), ("00:30:00", "0.27")],
)  # fmt: skip
def test_off_peak_hours_are_half_open_and_may_run_over_midnight(clock: str, price: str) -> None:
    card = make_card(per_million(input="0.27"), variants=(variant(hours=("16:30", "00:30"), input="0.135"),))
    found = rate_set([card], at=f"2026-02-01T{clock}Z")
    assert found.rates["uncached_input_tokens"].price == Decimal(price)


def test_a_band_of_a_variant_is_its_own() -> None:
    batch = Variant(("batch",), rates=per_million(input="1"), bands=(band(">", 100, input="2"),))
    card = make_card(per_million(input="2"), bands=(band(">", 200, input="4"),), variants=(batch,))
    book = PriceBook(1, [card])
    seen = {}
    for tier in (None, "batch"):
        for tokens in (100, 101, 200, 201):
            found = book.rate_set("cost", selectors(service_tier=tier, input_tokens=tokens))
            assert isinstance(found, RateSet)
            seen[tier, tokens] = int(found.rates["uncached_input_tokens"].price)
    assert seen == {
        (None, 100): 2, (None, 101): 2, (None, 200): 2, (None, 201): 4,
        ("batch", 100): 1, ("batch", 101): 2, ("batch", 200): 2, ("batch", 201): 2,
    }  # fmt: skip


# --- Time ------------------------------------------------------------------------------------------------------------

DEEP = [
    make_card(per_million(input="0.40", output="0.80"), model="m-deep"),
    make_card(per_million(input="1.00", output="2.00"), model="m-deep", effective_at="2026-04-09T16:30:00Z"),
]


def test_b050_a_new_price_does_not_change_earlier_days() -> None:
    old = make_card(per_million(input="6.00", output="24.00"), model="m-sol")
    new = make_card(per_million(input="4.50", output="18.00"), model="m-sol", effective_at="2026-05-14T00:00:00Z")
    counts = quantities(input=200_000, output=10_000)
    before = rate_set([old], model="m-sol", at="2026-05-11T09:00:00Z")
    after = rate_set([old, new], model="m-sol", at="2026-05-11T09:00:00Z")
    assert before.content_hash == after.content_hash
    assert after.card_hash == old.content_hash
    assert amount_of(counts, after) == Decimal("1.44")
    assert priced([old, new], counts, model="m-sol", at="2026-05-15T09:00:00Z").amount == Decimal("1.08")


@pytest.mark.parametrize(
    ("at", "amount"),
    [
        ("2026-04-09T16:29:59.999999Z", "0.008"),
        ("2026-04-09T16:29:59.999Z", "0.008"),
        ("2026-04-09T16:30:00.000Z", "0.02"),
        ("2026-04-09T16:30:00.000001Z", "0.02"),
    ],
)
def test_b051_the_exact_instant_belongs_to_the_new_card(at: str, amount: str) -> None:
    assert priced(DEEP, quantities(input=10_000, output=5000), model="m-deep", at=at).amount == Decimal(amount)


def test_b053_a_restated_price_is_another_card_and_the_old_knowledge_can_be_asked_for() -> None:
    august = "2026-08-01T00:00:00Z"
    first = make_card(per_million(input="0.40", output="0.80"), effective_at=august, recorded_at=august)
    second = make_card(
        per_million(input="1.00", output="2.00"),
        effective_at=august,
        recorded_at="2026-08-20T00:00:00Z",
        replaces=first.content_hash,
    )
    asked = selectors(at="2026-08-05T00:00:00Z")
    counts = quantities(input=10_000, output=5000)
    now, then = (
        PriceBook(2, [first, second]),
        PriceBook(2, [first, second], known_at=parse_rfc3339("2026-08-19T00:00:00Z")),
    )
    found = [book.rate_set("cost", asked) for book in (then, now)]
    assert [amount_of(counts, each) for each in found if isinstance(each, RateSet)] == [
        Decimal("0.008"),
        Decimal("0.02"),
    ]


def test_before_the_first_card_and_after_a_withdrawal_there_is_no_price() -> None:
    cards = [
        make_card(per_million(input="1")),
        make_card(effective_at="2026-03-01T00:00:00Z", is_withdrawal=True),
        make_card(per_million(input="2"), effective_at="2026-05-01T00:00:00Z"),
    ]
    assert why_unpriced(cards, at="2025-12-31T23:59:59.999999Z") == "no_card_in_force"
    assert rate_set(cards, at="2026-02-28T23:59:59.999999Z").rates["uncached_input_tokens"].price == 1
    assert why_unpriced(cards, at="2026-03-01T00:00:00Z") == "no_card_in_force"
    assert rate_set(cards, at="2026-05-01T00:00:00Z").rates["uncached_input_tokens"].price == 2


# --- Which card ------------------------------------------------------------------------------------------------------


def test_b043_an_unknown_model_is_unpriced() -> None:
    card = make_card(per_million(input="15.00", output="75.00"), model="acme-opus-4-1", provider="acme")
    assert why_unpriced([card], provider="acme", model="acme-opus-4.1") == "no_card"
    assert why_unpriced([card], provider="acme", model=None) == "unknown_model"
    later = make_card(per_million(input="15.00", output="75.00"), model="acme-opus-4.1", provider="acme")
    counts = quantities(input=10_000, output=1000)
    assert priced([card, later], counts, provider="acme", model="acme-opus-4.1").amount == Decimal("0.225")


@pytest.mark.parametrize("model", ["acme-scribe-pro-2026-05", "acme-scribe-image-2025-07", "acme-scrib", "ACME-SCRIBE"])
def test_b046_a_prefix_of_a_name_is_not_the_name(model: str) -> None:
    card = make_card(per_million(input="3.00", output="9.00"), model="acme-scribe")
    assert why_unpriced([card], model=model) == "no_card"
    assert priced([card], quantities(input=1_000_000, output=1_000_000), model="acme-scribe").amount == Decimal(12)


def test_the_most_specific_cost_card_counts() -> None:
    cards = [
        make_card(per_million(input="4")),
        make_card(per_million(input="3"), deployment="ptu-1"),
        make_card(per_million(input="2"), provider_account="acct-1"),
        make_card(per_million(input="1"), provider_account="acct-1", deployment="ptu-1"),
    ]
    found = {
        (account, deployment): rate_set(cards, provider_account=account, deployment=deployment)
        for account in (None, "acct-1", "acct-2")
        for deployment in (None, "ptu-1", "ptu-2")
    }
    assert {key: int(each.rates["uncached_input_tokens"].price) for key, each in found.items()} == {
        (None, None): 4, (None, "ptu-1"): 3, (None, "ptu-2"): 4,
        ("acct-1", None): 2, ("acct-1", "ptu-1"): 1, ("acct-1", "ptu-2"): 2,
        ("acct-2", None): 4, ("acct-2", "ptu-1"): 3, ("acct-2", "ptu-2"): 4,
    }  # fmt: skip


CHARGES = [
    make_card(per_million(input="1", output="2")),
    make_card(per_million(input="1", output="2"), model="m-plain"),
    make_card(None, book="charge", model=None, markup=Decimal("1.20")),
    make_card(per_million(input="1.5", output="3"), book="charge"),
    make_card(per_million(input="1.1", output="2.2"), book="charge", tenant_id="t-contract"),
    make_card(None, book="charge", model=None, tenant_id="t-cost-plus", markup=Decimal("1.05")),
]


@pytest.mark.parametrize(
    ("tenant", "model", "price"),
    [
        ("t-contract", "m-sub", "1.1"),  # the tenant's own card
        ("t-cost-plus", "m-sub", "1.05"),  # the tenant's own markup stands before the plan
        ("t-alpha", "m-sub", "1.5"),  # the plan's card
        ("t-contract", "m-plain", "1.20"),  # neither: the plan's markup over cost
        ("t-alpha", "m-plain", "1.20"),
    ],
)
def test_the_charge_is_the_contract_then_the_plan_then_the_markup_over_cost(
    tenant: str, model: str, price: str
) -> None:
    found = rate_set(CHARGES, "charge", model=model, tenant_id=tenant, currency="USD")
    assert found.rates["uncached_input_tokens"].price == Decimal(price)


def test_a_markup_follows_the_cost_through_bands_hours_and_new_cards() -> None:
    cost = make_card(
        per_million(input="1"),
        bands=(band(">", 100, input="2"),),
        variants=(variant(hours=("01:00", "02:00"), input="0.5"),),
    )
    dearer = make_card(per_million(input="10"), effective_at="2026-06-01T00:00:00Z")
    markup = make_card(None, book="charge", model=None, markup=Decimal("1.3"))
    book = PriceBook(1, [cost, dearer, markup])

    def charge(at: str, tokens: int) -> RateSet:
        found = book.rate_set("charge", selectors(at=at, input_tokens=tokens, tenant_id="t", currency="USD"))
        assert isinstance(found, RateSet)
        return found

    seen = [charge(f"2026-0{day}", tokens) for day, tokens in [
        ("2-01T12:00:00Z", 100), ("2-01T12:00:00Z", 101), ("2-01T01:00:00Z", 101), ("6-01T00:00:00Z", 101)
    ]]  # fmt: skip
    assert [each.rates["uncached_input_tokens"].price for each in seen] == [
        Decimal(p) for p in ("1.3", "2.6", "0.65", "13")
    ]
    assert seen[0].selectors["markup"] == "1.3"
    assert seen[0].card_hash == markup.content_hash


def test_a_charge_in_another_currency_is_unpriced_and_does_not_let_a_wider_price_through() -> None:
    contract = make_card(per_million(input="1"), book="charge", tenant_id="t-euro", currency="EUR")
    asked: dict[str, Any] = {"tenant_id": "t-euro", "currency": "USD"}
    assert why_unpriced([*CHARGES, contract], "charge", **asked) == "no_rate_in_currency"
    assert rate_set([*CHARGES, contract], "charge", tenant_id="t-euro", currency="EUR").currency == "EUR"
    markup = make_card(None, book="charge", provider="openai", model=None, currency="EUR", markup=Decimal(1))
    assert why_unpriced([CHARGES[0], markup], "charge", tenant_id="t", currency="EUR") == "no_rate_in_currency"


def test_two_plans_in_two_currencies_live_side_by_side() -> None:
    cards = [
        make_card(per_million(input=price), book="charge", currency=currency)
        for price, currency in (("1", "USD"), ("2", "EUR"))
    ]
    for currency, price in (("USD", 1), ("EUR", 2)):
        assert rate_set(cards, "charge", currency=currency).rates["uncached_input_tokens"].price == price


def test_a_free_card_prices_everything_at_zero_and_says_so() -> None:
    found = rate_set([make_card(None, is_free=True)], service_tier="anything")
    assert found.is_free
    assert amount_of({"cache_read_tokens": 5, "pages": 1}, found) == 0


# --- Fallbacks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "rates", "meter", "taken"),
    [
        ("refuse", {"input": "1"}, "cache_read_tokens", None),
        ("refuse", {"write_5m": "1"}, "cache_write_other_tokens", "cache_write_5m_tokens"),
        ("refuse", {"write_5m": "1"}, "cache_write_1h_tokens", None),
        ("refuse", {"output": "1"}, "reasoning_tokens", "visible_output_tokens"),
        ("use_input_rate", {"input": "1"}, "cache_write_1h_tokens", "uncached_input_tokens"),
        ("use_input_rate", {"input": "1", "write_5m": "2"}, "cache_write_1h_tokens", "cache_write_5m_tokens"),
        ("use_input_rate", {"input": "1", "output": "2"}, "visible_output_audio_tokens", None),
        ("use_side_rate", {"input": "1", "output": "2"}, "visible_output_audio_tokens", "visible_output_tokens"),
        ("use_side_rate", {"input": "1", "cached": "2"}, "cache_read_image_tokens", "cache_read_tokens"),
        ("use_side_rate", {"input": "1", "input_image": "2"}, "cache_read_image_tokens", "uncached_input_image_tokens"),
        # Both contain it, neither more nearly: no price is better than a guess.
        ("use_side_rate", {"input": "1", "cached": "3", "input_image": "2"}, "cache_read_image_tokens", None),
        ("use_side_rate", {"input": "1"}, "web_search_calls", None),
    ],
)  # fmt: skip
def test_a_meter_without_a_rate_takes_the_nearest_one_that_the_policy_allows(
    policy: str, rates: dict[str, str], meter: str, taken: str | None
) -> None:
    resolved = rate_set([make_card(per_million(**rates), missing_component=policy)]).rates
    assert (resolved[meter].priced_as if meter in resolved else None) == taken
    assert (meter in resolved) == (taken is not None)


# --- The same object, fast -------------------------------------------------------------------------------------------


def test_the_same_question_gets_the_same_object() -> None:
    book = PriceBook(1, CHARGES)
    one, two = (book.rate_set("charge", selectors(tenant_id=tenant, currency="USD")) for tenant in ("t-1", "t-2"))
    assert one is two
    assert one is book.rate_set("charge", selectors(tenant_id="t-1", currency="USD", at="2026-07-01T00:00:00Z"))


def test_the_hash_of_a_rate_set_covers_what_it_says() -> None:
    one = rate_set([make_card(per_million(input="1.50"))])
    same = rate_set([make_card(per_million(input="1.5"), recorded_at="2026-05-05T00:00:00Z")])
    other = rate_set([make_card(per_million(input="1.51"))])
    assert one.content_hash == same.content_hash
    assert one.content_hash != other.content_hash
    # Entries name rate sets by this hash for ever: a change of the canonical form must be seen.
    assert one.content_hash == "25cea704-1687-4c3a-3284-5b1175ee90d4"


# --- What is refused -------------------------------------------------------------------------------------------------


def rate(price: str, per: int = 1_000_000, **more: Any) -> dict[str, Price]:
    return {"uncached_input_tokens": Price(Decimal(price), per, **more)}


REFUSED = [
    (make_card(rate("1"), provider=""), "provider"),
    (make_card(rate("1"), currency="usd"), "currency"),
    (make_card(rate("1"), tenant_id="t"), "tenant_id"),
    (make_card(rate("1"), is_withdrawal=True), "body"),
    (make_card(None, markup=Decimal(2)), "markup"),
    (make_card(rate("1"), book="charge", markup=Decimal(2)), "markup"),
    (make_card(None, book="charge", markup=Decimal(0)), "markup"),
    (make_card(None, book="charge", markup=Decimal("10.01")), "markup"),
    (make_card(rate("1"), model=None), "model"),
    (make_card(rate("1"), is_free=True), "is_free"),
    (make_card(None), "rates"),
    (make_card({"tokens": Price(Decimal(1), 1000)}), "rates.tokens"),
    (make_card(rate("1", 3600)), "rates.uncached_input_tokens"),
    (make_card(rate("1", 0)), "rates.uncached_input_tokens"),
    (make_card(rate("1", 10**10)), "rates.uncached_input_tokens"),
    (make_card(rate("-1")), "rates.uncached_input_tokens"),
    (make_card(rate("NaN")), "rates.uncached_input_tokens"),
    (make_card(rate("Infinity")), "rates.uncached_input_tokens"),
    (make_card(rate("0")), "rates.uncached_input_tokens"),
    (make_card(rate("1", is_free=True)), "rates.uncached_input_tokens"),
    (make_card(rate("0.000000000000000000001")), "rates.uncached_input_tokens"),
    (make_card(rate("1000.01")), "rates.uncached_input_tokens"),
    (make_card({"web_search_calls": Price(Decimal("10.01"), 1)}), "rates.web_search_calls"),
    (make_card(rate("1"), bands=(Band(">", 0, rate("2")),)), "bands[1]"),
    (make_card(rate("1"), bands=(Band(">", 20, rate("2")), Band(">", 10, rate("3")))), "bands[2]"),
    (make_card(rate("1"), bands=(Band(">", 20, rate("2")), Band(">=", 21, rate("3")))), "bands[2]"),
    (make_card(per_million(input="1", cached="1"), bands=(Band(">", 20, rate("2")),)), "bands[1].rates"),
    (make_card(rate("1"), bands=(band(">", 20, input="2", cached="2"),)), "bands[1].rates"),
    (make_card(rate("1"), variants=(variant(input="1"),)), "variants[1]"),
    (make_card(rate("1"), variants=(variant("a", input="1"), variant("a", input="2"))), "variants[2]"),
    (make_card(rate("1"), variants=(variant(hours=("8:00", "09:00"), input="1"),)), "variants[1].hours"),
    (make_card(rate("1"), variants=(variant(hours=("08:00", "08:00"), input="1"),)), "variants[1].hours"),
    (make_card(rate("1"), variants=(variant("a", input="5000"),)), "variants[1].rates.uncached_input_tokens"),
    (make_card(rate("1"), billing_rules={"mercy": "free"}), "billing_rules.mercy"),
    (make_card(rate("1"), billing_rules={"own_key": "perhaps"}), "billing_rules.own_key"),
    (make_card(rate("1"), billing_rules={"fee_per_operation": "cheap"}), "billing_rules.fee_per_operation"),
    (make_card(rate("1"), replaces="00000000-0000-0000-0000-000000000000"), "replaces"),
]


@pytest.mark.parametrize(("card", "field"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_a_card_that_could_misprice_is_refused_by_name_field_and_rule(card: Any, field: str) -> None:
    with pytest.raises(CardRefused) as refused:
        PriceBook(1, [card])
    assert refused.value.field == field
    assert str(card) in str(refused.value)


def test_b052_a_price_of_absurd_size_needs_a_persons_word() -> None:
    row_b = {"uncached_input_tokens": Price(Decimal("2.50"), 1000)}
    with pytest.raises(
        CardRefused, match=r"is 2\.5 USD per 1,000; above 1 USD the card must say is_high_price_confirmed"
    ):
        PriceBook(1, [make_card(row_b, model="m-b")])
    confirmed = make_card(row_b, model="m-b", is_high_price_confirmed=True)
    row_c = make_card(per_million(input="2.50"), model="m-c")
    row_d = make_card({"uncached_input_tokens": Price(Decimal("0.0000025"), 1)}, model="m-d")
    counts = quantities(input=1000)
    found = [priced([confirmed, row_c, row_d], counts, model=model).amount for model in ("m-b", "m-c", "m-d")]
    assert found == [Decimal("2.5"), Decimal("0.0025"), Decimal("0.0025")]


@pytest.mark.parametrize(("price", "is_refused"), [("999.99", False), ("1000", False), ("1000.01", True)])
def test_the_bound_itself_is_allowed(price: str, is_refused: bool) -> None:
    card = make_card(rate(price))
    if is_refused:
        with pytest.raises(CardRefused):
            PriceBook(1, [card])
    else:
        PriceBook(1, [card])


def test_the_bound_of_a_currency_without_cents_is_a_hundred_times_higher() -> None:
    PriceBook(1, [make_card(rate("100000"), currency="JPY")])
    with pytest.raises(CardRefused):
        PriceBook(1, [make_card(rate("100001"), currency="JPY")])


def test_two_cards_for_the_same_instant_are_refused_unless_one_replaces_the_other() -> None:
    first, second = make_card(rate("1")), make_card(rate("2"))
    with pytest.raises(CardRefused, match="names the card that it replaces"):
        PriceBook(1, [first, second])
    PriceBook(1, [first, first])
    stated = make_card(rate("2"), replaces=first.content_hash)
    again = make_card(rate("1"), replaces=stated.content_hash)
    book = PriceBook(1, [first, stated, again])
    found = book.rate_set("cost", selectors())
    assert isinstance(found, RateSet)
    assert found.card_hash == again.content_hash
    with pytest.raises(CardRefused, match="another card replaces already"):
        PriceBook(1, [first, stated, make_card(rate("3"), replaces=first.content_hash)])
    with pytest.raises(CardRefused, match="other selectors or another instant"):
        PriceBook(1, [first, make_card(rate("3"), model="m-x", replaces=first.content_hash)])


# --- Rows ------------------------------------------------------------------------------------------------------------


def test_a_body_comes_back_from_its_row() -> None:
    body = Body(
        rates=per_million(input="2.50", output="10"),
        bands=(band(">=", 200_000, input="5", output="20"),),
        variants=(variant("batch", regions=("eu",), hours=("16:30", "00:30"), input="1.25"),),
        missing_component="use_input_rate",
        billing_rules={"own_key": "free"},
    )
    row = body_to_row(body)
    assert row["rates"]["uncached_input_tokens"] == {"price": "2.5", "per": 1_000_000}
    assert body_from_row(row) == body


def test_selectors_are_values() -> None:
    assert Selectors("p", "m", 1) == Selectors("p", "m", 1)
