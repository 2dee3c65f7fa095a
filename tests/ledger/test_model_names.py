"""A name is known exactly, or through a rule that somebody declared, or not at all."""

import pytest

from ledger.database import connect
from ledger.errors import ActRefused, Unknown
from ledger.model_names import NameRule, NameRules
from ledger.parties import Model, Parties
from ledger.registry import accept_names, list_name_rules, set_name_rules, unknown_names
from tests.factories import make_event
from tests.support.ledger import Ledger

HOSTED: NameRules = (
    NameRule("version_suffix"),
    *(NameRule("prefix", f"{region}.anthropic.") for region in ("us", "eu", "apac", "au", "jp", "global")),
    NameRule("prefix", "anthropic."),
    NameRule("prefix", "anthropic/"),
)
FOLD = NameRule("fold_case")


def found(
    name: str, rules: NameRules = HOSTED, known: tuple[str, ...] = ("claude-x-4-6", "eu.anthropic.claude-x-4-6")
) -> str | None:
    parties = Parties(1, {}, {}, {("bedrock", each): Model("bedrock", each) for each in known}, {"bedrock": rules})
    model = parties.model("bedrock", name)
    assert parties.model("bedrock", name) is model
    return model.model if model else None


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("claude-x-4-6", "claude-x-4-6"),
        ("anthropic/claude-x-4-6", "claude-x-4-6"),
        ("us.anthropic.claude-x-4-6", "claude-x-4-6"),
        ("jp.anthropic.claude-x-4-6-v1", "claude-x-4-6"),
        ("eu.anthropic.claude-x-4-6-v1:0", "eu.anthropic.claude-x-4-6"),  # the specific entry wins over the general one
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
    name: str, model: str | None
) -> None:
    assert found(name) == model


def test_without_rules_a_name_is_only_itself() -> None:
    assert found("claude-x-4-6", ()) == "claude-x-4-6"
    assert found("claude-x-4-6-v1", ()) is None


def test_case_is_folded_only_where_a_rule_says_so_and_only_where_one_model_is_meant() -> None:
    assert found("minimax-m2", (), ("MiniMax-M2",)) is None
    assert found("minimax-m2", (FOLD,), ("MiniMax-M2",)) == "MiniMax-M2"
    assert found("minimax-m2", (FOLD,), ("MiniMax-M2", "MINIMAX-M2")) is None
    assert found("MINIMAX-M2", (FOLD,), ("MiniMax-M2", "MINIMAX-M2")) == "MINIMAX-M2", "itself"
    assert found("Anthropic/MiniMax-M2-v1", (*HOSTED, FOLD), ("MiniMax-M2",)) is None, "the prefix is not folded"
    assert found("Anthropic/MiniMax-M2-v1", (FOLD, *HOSTED), ("MiniMax-M2",)) == "MiniMax-M2"


def test_of_two_rules_that_lead_somewhere_the_earlier_counts() -> None:
    known = ("m-v1", "us.m")
    prefix, suffix = NameRule("prefix", "us."), NameRule("version_suffix")
    assert found("us.m-v1", (prefix, suffix), known) == "m-v1"
    assert found("us.m-v1", (suffix, prefix), known) == "us.m"


async def test_rules_are_set_by_an_act_and_counted_from_the_next_batch(ledger: Ledger) -> None:
    await ledger.add_price("claude-x-4-6", provider="bedrock", input="5.00", output="25.00")
    named = make_event("a", provider="bedrock", model="us.anthropic.claude-x-4-6", requested_model=...)
    await ledger.post(named)
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        assert [(each.name, each.entry_count) for each in await unknown_names(operator)] == [
            ("us.anthropic.claude-x-4-6", 1)
        ]
        await set_name_rules(operator, "someone", "bedrock", HOSTED)
        assert [str(each.rule) for each in await list_name_rules(operator, "bedrock")] == [str(rule) for rule in HOSTED]
        with pytest.raises(ActRefused, match="stands twice"):
            await set_name_rules(operator, "someone", "bedrock", (FOLD, FOLD))
    await ledger.post({**named, "id": "b", "data": {**named["data"], "request_id": "req-b"}})
    assert ledger.rows("select model, cost_amount is null from ledger.entries order by entry_id") == [
        (None, True),
        ("claude-x-4-6", False),
    ]
    assert ledger.value("select act from ledger.acts") == "models.rules"


async def test_a_name_that_a_person_accepts_is_an_exact_alias(ledger: Ledger) -> None:
    await ledger.add_price("m-a", input="1", output="1")
    await ledger.add_price("m-b", input="1", output="1")
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        accepted = {("openai", "m-a-2026"): "m-a"}
        assert await accept_names(operator, "someone", accepted, "test", "the same model") == 1
        assert await accept_names(operator, "someone", accepted, "test") == 0
        with pytest.raises(ActRefused, match="is a name of model m-a"):
            await accept_names(operator, "someone", {("openai", "m-a-2026"): "m-b"}, "test")
        with pytest.raises(Unknown):
            await accept_names(operator, "someone", {("openai", "m-c-2026"): "m-c"}, "test")
    await ledger.post(make_event("a", model="m-a-2026", requested_model="m-a-2026"))
    assert ledger.rows("select reported_model, model from ledger.entries") == [("m-a-2026", "m-a")]
