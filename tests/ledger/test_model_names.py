"""A name is known exactly, or through a declared prefix or suffix, or not at all."""

from decimal import Decimal

import pytest

from ledger.model_names import NameRules, resolve
from tests.ledger.prices import make_card, per_million, priced, quantities

RULES = NameRules(
    hosting_prefixes=(
        "anthropic/",
        "anthropic.",
        *(f"{region}.anthropic." for region in ("us", "eu", "apac", "au", "jp", "global")),
    ),
    has_version_suffix=True,
)
CARDS = [
    make_card(per_million(input="5.00", output="25.00"), model="claude-x-4-6", provider="bedrock"),
    make_card(per_million(input="5.50", output="27.50"), model="eu.anthropic.claude-x-4-6", provider="bedrock"),
]
KNOWN = {card.model: card.model for card in CARDS if card.model is not None}


@pytest.mark.parametrize(
    ("name", "amount"),
    [
        ("claude-x-4-6", "0.0075"),
        ("anthropic/claude-x-4-6", "0.0075"),
        ("us.anthropic.claude-x-4-6", "0.0075"),
        ("jp.anthropic.claude-x-4-6-v1", "0.0075"),
        ("eu.anthropic.claude-x-4-6-v1:0", "0.00825"),  # the specific entry wins over the general one
        ("zz.anthropic.claude-x-4-6", None),
        ("claude-x-4-60", None),
        ("claude-x-4-6-v", None),
        ("claude-x-4-6-v1:", None),
        ("anthropic/", None),
        ("anthropic/anthropic/claude-x-4-6", None),
        ("CLAUDE-X-4-6", None),
        ("", None),
    ],
)
def test_b047_known_hosting_prefixes_and_version_suffixes_resolve_and_others_do_not(
    name: str, amount: str | None
) -> None:
    model = resolve(name, KNOWN, RULES)
    if amount is None:
        assert model is None
    else:
        result = priced(CARDS, quantities(input=1000, output=100), model=model, provider="bedrock")
        assert result.amount == Decimal(amount)


def test_without_rules_a_name_is_only_itself() -> None:
    assert resolve("claude-x-4-6", KNOWN, NameRules()) == "claude-x-4-6"
    assert resolve("claude-x-4-6-v1", KNOWN, NameRules()) is None


def test_case_is_folded_only_where_the_rules_say_so() -> None:
    known = {"minimax-m2": "MiniMax-M2"}
    assert resolve("MiniMax-M2", known, NameRules()) is None
    assert resolve("MiniMax-M2", known, NameRules(folds_case=True)) == "MiniMax-M2"
