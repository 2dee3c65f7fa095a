"""Grants: which usage burns which of them, in the stated order; pure, with the arithmetic in sight."""

import random
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from quotas.grants import Burn, Grant, Use, burn, project


def grant(grant_id: str, amount: str = "10", effective_at: int = 0, **values: Any) -> Grant:
    return Grant(grant_id=grant_id, amount=Decimal(amount), effective_at=effective_at, **values)


def use(at: int, amount: str, **values: Any) -> Use:
    return Use(at=at, amount=Decimal(amount), **values)


def burnt(done: Burn) -> dict[str, str]:
    return {grant_id: f"{amount.normalize():f}" for grant_id, amount in done.burnt.items() if amount}


def test_the_lower_priority_burns_first_then_what_expires_soonest_then_the_oldest() -> None:
    """One of each rule, ten each; 45 burn the first four whole and half of the fifth."""
    grants = [
        grant("e-youngest", effective_at=2),
        grant("d-oldest", effective_at=1),
        grant("c-later", expires_at=900),
        grant("b-sooner", expires_at=800),
        grant("a-first", priority=1),
    ]
    assert burnt(burn(grants, [use(100, "45")])) == {
        "a-first": "10", "b-sooner": "10", "c-later": "10", "d-oldest": "10", "e-youngest": "5",
    }  # fmt: skip


def test_of_two_that_are_equal_in_all_the_id_decides() -> None:
    assert burnt(burn([grant("b"), grant("a")], [use(1, "12")])) == {"a": "10", "b": "2"}


def test_usage_burns_a_grant_from_its_start_to_before_its_end() -> None:
    """In force from 100 until before 200: below, at and above each."""
    for at, expected in ((99, {}), (100, {"g": "1"}), (199, {"g": "1"}), (200, {}), (201, {})):
        assert burnt(burn([grant("g", effective_at=100, expires_at=200)], [use(at, "1")])) == expected


def test_conditions_choose_what_burns_a_grant() -> None:
    grants = [grant("chat", "5", feature="chat", priority=1), grant("m", "5", model="m-1", priority=2), grant("any")]
    done = burn(grants, [use(1, "7", feature="chat", model="m-2"), use(2, "3", feature="search", model="m-1")])
    assert burnt(done) == {"chat": "5", "any": "2", "m": "3"}
    assert done.overflow == 0


def test_what_no_grant_pays_overflows() -> None:
    done = burn([grant("g", "10")], [use(1, "4"), use(2, "8.5")])
    assert (burnt(done), done.overflow) == ({"g": "10"}, Decimal("2.5"))


def test_what_is_given_back_frees_what_was_used_last() -> None:
    """12 burn a and 2 of b; 4 come back: 2 to b, then 2 to a. After an overflow that is freed first."""
    grants = [grant("a", priority=1), grant("b", "5", priority=2)]
    assert burnt(burn(grants, [use(1, "12"), use(2, "-4")])) == {"a": "8"}
    done = burn(grants, [use(1, "16"), use(2, "-3")])
    assert (burnt(done), done.overflow) == ({"a": "10", "b": "3"}, Decimal(0))
    assert burn(grants, [use(1, "-3")]).overflow == Decimal(-3)


def test_an_expired_grant_has_nothing_left_and_says_what_lapsed() -> None:
    grants = [grant("g", expires_at=200), grant("later", effective_at=300)]
    before, after = (project(grants, [use(150, "4")], at) for at in (199, 200))
    assert [(each.left, each.lapsed) for each in before.balances] == [(Decimal(6), 0), (0, 0)]
    assert [(each.left, each.lapsed) for each in after.balances] == [(0, Decimal(6)), (0, 0)]
    assert (before.left, after.left) == (Decimal(6), Decimal(0))


def test_what_is_left_for_some_is_not_left_for_any() -> None:
    assert project([grant("g", "3"), grant("m", "5", model="m-1")], [], at=1).left == Decimal(3)


amounts = st.decimals("0", "20", places=6)
grants_given = st.lists(
    st.builds(
        Grant,
        grant_id=st.integers(0, 99).map(lambda number: f"g{number}"),
        amount=amounts,
        effective_at=st.integers(0, 50),
        expires_at=st.none() | st.integers(51, 120),
        priority=st.integers(1, 3),
        feature=st.none() | st.sampled_from(["chat", "search"]),
        model=st.none() | st.sampled_from(["m-1", "m-2"]),
    ),
    max_size=6,
    unique_by=lambda each: each.grant_id,
)
uses_given = st.lists(
    st.builds(
        Use,
        at=st.integers(0, 130),
        amount=st.decimals("-5", "20", places=12),
        feature=st.none() | st.sampled_from(["chat", "search"]),
        model=st.none() | st.sampled_from(["m-1", "m-2"]),
    ),
    max_size=20,
)


@given(grants=grants_given, uses=uses_given, seed=st.integers(0, 9))
def test_burns_and_overflow_sum_to_the_usage_in_any_order_of_arrival(
    grants: list[Grant], uses: list[Use], seed: int
) -> None:
    done = burn(grants, uses)
    assert sum(done.burnt.values()) + done.overflow == sum(each.amount for each in uses)
    assert all(0 <= done.burnt[each.grant_id] <= each.amount for each in grants), "no balance is ever below zero"
    shuffled = random.Random(seed)
    assert burn(shuffled.sample(grants, len(grants)), shuffled.sample(uses, len(uses))) == done


@given(grants=grants_given, uses=uses_given, at=st.integers(0, 130))
def test_what_is_burnt_left_lapsed_and_to_come_is_what_was_granted(
    grants: list[Grant], uses: list[Use], at: int
) -> None:
    for each in project(grants, uses, at).balances:
        to_come = each.grant.amount - each.burnt if each.grant.effective_at > at else Decimal(0)
        assert each.burnt + each.left + each.lapsed + to_come == each.grant.amount


@given(grants=grants_given, uses=uses_given, at=st.integers(0, 130))
def test_usage_of_a_later_instant_takes_nothing_back(grants: list[Grant], uses: list[Use], at: int) -> None:
    """Usage that only ever adds: what was burnt up to an instant stays burnt by what comes after it."""
    adding = [each for each in uses if each.amount >= 0]
    early = burn(grants, [each for each in adding if each.at <= at])
    whole = burn(grants, adding)
    assert all(early.burnt[each.grant_id] <= whole.burnt[each.grant_id] for each in grants)
