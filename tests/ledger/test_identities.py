"""Keys and instants: the bytes on which every look-up and every month's edge stands."""

import pytest

from ledger.keys import ACT, EVENT, event_key, key, key_head, key_under, request_key
from ledger.times import from_micros, parse_rfc3339


def test_keys_are_as_ever() -> None:
    """Keys are unique for ever, so these may never change."""
    assert event_key("t-alpha", "gateway://eu-1", "ev-1") == "2e2f2ec6-1a8d-cb79-2293-21d982665194"
    assert request_key("t-alpha", "ev-1") == "c3ab0e7f-d81f-6b5d-db67-3df8e3c4a4c3"
    assert key(ACT, "", "", "é") == "faf9f328-92e4-3be9-bef3-3363136edcdd"
    assert (
        event_key("t-alpha", "gateway://eu-1", "01890A5D-ac96-774b-bcce-b302099a8057")
        == "01890a5d-ac96-e09a-30c3-538bab518dd3"
    )


def test_a_uuid7_puts_its_own_time_in_front() -> None:
    identity = "01890a5d-ac96-774b-bcce-b302099a8057"
    assert event_key("t", "s", identity)[:13] == identity[:13]
    for other in (identity.replace("-7", "-4"), identity.replace("-b", "-c"), identity[:-1], identity + "0", "é" * 36):
        assert event_key("t", "s", other)[:13] != other[:13]


def test_each_part_counts_with_its_length() -> None:
    assert event_key("ab", "c", "d") != event_key("a", "bc", "d") != event_key("a", "b", "cd")
    assert event_key("a", "b", "c") != request_key("a", "c")


def test_a_head_that_is_kept_makes_the_same_keys() -> None:
    assert key_under(key_head(EVENT, "tä", "s"), "é") == event_key("tä", "s", "é")


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-01-15T10:00:00Z", 1768471200_000000),
        ("2026-01-15t10:00:00z", 1768471200_000000),
        ("2026-01-15 11:00:00+01:00", 1768471200_000000),
        ("2026-01-15T10:00:00.5Z", 1768471200_500000),
        ("2026-01-15T10:00:00.123456Z", 1768471200_123456),
        ("2026-01-15T10:00:00.1234567Z", 1768471200_123456),
        ("2026-01-15T10:00:00.999999999Z", 1768471200_999999),
        ("2026-01-15T10:00:00.999999999999Z", 1768471200_999999),
        ("2026-01-15T04:30:00.25-05:30", 1768471200_250000),
        ("1969-12-31T23:59:59.5Z", -500000),
    ],
)
def test_instants_are_cut_to_microseconds(text: str, instant: int) -> None:
    assert parse_rfc3339(text) == instant
    assert (from_micros(instant).microsecond - instant) % 1_000_000 == 0


@pytest.mark.parametrize(
    "text",
    [
        "", "Z", "2026-01-15", "2026-01-15T10:00:00", "2026-01-15T10:00Z", "2026-01-15T10:00:00.Z",
        "2026-01-15T10:00:00.1234567890123Z", "2026-01-15T10:00:00.١Z", "2026-01-15T10:00:00.²Z", "2026-01-15T10:00:00ZZ",
        "2026-13-15T10:00:00Z", "2026-02-30T10:00:00Z", "2026-01-15T24:00:00Z", "2026-01-15T10:00:60Z",
        "2026-01-15T10:00:00+0100", "2026-01-15T10:00:00 Z", " 2026-01-15T10:00:00Z", "2026-01-15X10:00:00Z",
        "2026-W03-4T10:00:00Z", "20260115T100000Z", "٢٠٢٦-01-15T10:00:00Z", "2026-01-15T10:00:00Z\n", "2026-01-15T10:00:00+25:00",
    ],
)  # fmt: skip
def test_what_is_no_rfc_3339_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_rfc3339(text)
