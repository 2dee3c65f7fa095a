"""Files to events: what columns mean, what is refused by field and row, and that nothing passes through a float."""

import gzip
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ingest.load_files import FileMapping, FileRow, LoadFileRefused, read_mapping, rows_of

GOOD = {
    "tenant_id": "t-alpha",
    "id": "i1",
    "time": "2026-01-10T10:00:00Z",
    "request_id": "r1",
    "provider": "openai",
    "model": "m-sub",
    "uncached_input_tokens": "12",
    "visible_output_tokens": "3",
}


def rows(
    folder: Path, *given: dict[str, str], mapping: FileMapping | None = None, name: str = "u.csv"
) -> list[FileRow]:
    """Write rows as a CSV and read them as a load does."""
    path = folder / name
    text = "\n".join([",".join(given[0]), *(",".join(row.values()) for row in given)]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return list(read(path, mapping))


def read(path: Path, mapping: FileMapping | None = None) -> Iterator[FileRow]:
    for some in rows_of(path, mapping or FileMapping(), "load:x"):
        yield from some


def event(row: FileRow) -> dict[str, Any]:
    assert row.reason is None, row.detail
    said: dict[str, Any] = json.loads(row.body)
    return said


def test_a_row_is_an_event_of_the_loads_source(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, GOOD)
    assert event(row) == {
        "specversion": "1.0",
        "type": "llm.usage.v1",
        "id": "i1",
        "source": "load:x",
        "time": "2026-01-10T10:00:00Z",
        "data": {
            "tenant_id": "t-alpha",
            "request_id": "r1",
            "provider": "openai",
            "model": "m-sub",
            "quantities": {"uncached_input_tokens": 12, "visible_output_tokens": 3},
        },
    }


def test_a_packed_table_reads_the_same(tmp_path: Path) -> None:
    assert rows(tmp_path, GOOD, name="u.csv.gz") == rows(tmp_path, GOOD)


@pytest.mark.parametrize("count", ["12.0", "1e3", "-1", "9223372036854775808", "twelve", "0x1F", "1 5"])
def test_what_is_no_whole_number_is_refused_by_name_and_row(tmp_path: Path, count: str) -> None:
    fine, refused = rows(tmp_path, GOOD, {**GOOD, "uncached_input_tokens": count})
    assert fine.reason is None
    assert (refused.row_no, refused.reason) == (2, "bad_row")
    assert refused.detail == f"uncached_input_tokens: '{count}' is no whole number below 2^63"
    assert json.loads(refused.body)["uncached_input_tokens"] == count


def test_the_largest_count_keeps_every_digit(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, {**GOOD, "uncached_input_tokens": "9223372036854775807"})
    assert event(row)["data"]["quantities"]["uncached_input_tokens"] == 9_223_372_036_854_775_807


def test_an_empty_count_is_unknown_until_somebody_says_that_it_is_zero(tmp_path: Path) -> None:
    empty = {**GOOD, "visible_output_tokens": ""}
    (refused,) = rows(tmp_path, empty)
    assert refused.detail == (
        "visible_output_tokens: is empty beside other counts: write 0, or say `empty_counts: zero` in the mapping"
    )
    (row,) = rows(tmp_path, empty, mapping=FileMapping(empty_counts="zero"))
    assert event(row)["data"]["quantities"] == {"uncached_input_tokens": 12, "visible_output_tokens": 0}


def test_a_row_without_any_count_is_a_report_without_usage(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, {**GOOD, "uncached_input_tokens": "", "visible_output_tokens": ""})
    assert event(row)["data"]["quantities"] is None


@pytest.mark.parametrize(
    ("time", "zone", "said"),
    [
        ("2026-01-10T10:00:00+02:00", None, "2026-01-10T10:00:00+02:00"),
        ("2026-01-10 10:00:00.1234567Z", "Europe/Berlin", "2026-01-10 10:00:00.1234567Z"),
        ("2026-01-10 10:00:00", "Europe/Berlin", "2026-01-10T09:00:00.000000Z"),
        ("2026-07-10T10:00:00.99999999", "Europe/Berlin", "2026-07-10T08:00:00.999999Z"),
    ],
)
def test_times_keep_their_offset_or_get_the_zone_that_is_given(
    tmp_path: Path, time: str, zone: str | None, said: str
) -> None:
    (row,) = rows(tmp_path, {**GOOD, "time": time}, mapping=FileMapping(time_zone=zone))
    assert event(row)["time"] == said


@pytest.mark.parametrize(
    ("time", "zone", "rule"),
    [
        ("2026-01-10T10:00:00", None, "'2026-01-10T10:00:00' has no zone; --time-zone says which"),
        ("10.01.2026", None, "'10.01.2026' is no time such as 2026-01-31T10:00:00Z"),
        ("2026-02-30T10:00:00", "Europe/Berlin", "'2026-02-30T10:00:00' is no time such as 2026-01-31T10:00:00Z"),
        (
            "2026-03-29T02:30:00",
            "Europe/Berlin",
            "is no one instant of Europe/Berlin: the clocks change there; give it with its offset",
        ),
        (
            "2026-10-25T02:30:00",
            "Europe/Berlin",
            "is no one instant of Europe/Berlin: the clocks change there; give it with its offset",
        ),
    ],
)
def test_times_that_are_no_one_instant_are_refused(tmp_path: Path, time: str, zone: str | None, rule: str) -> None:
    (row,) = rows(tmp_path, {**GOOD, "time": time}, mapping=FileMapping(time_zone=zone))
    assert row.detail == f"time: {rule}"


def test_a_mapping_names_columns_gives_constants_and_numbers_rows(tmp_path: Path) -> None:
    mapping = FileMapping(
        columns={"time": "At", "uncached_input_tokens": "In", "visible_output_tokens": "Out"},
        constants={"tenant_id": "t-alpha", "provider": "openai", "model": "m-sub", "visible_output_audio_tokens": 0},
        rows={"id": "trace-", "request_id": "trace-"},
        ignore=["Note"],
    )
    first = {"At": "2026-01-10T10:00:00Z", "In": "1", "Out": "2", "Note": "x"}
    found = [event(row) for row in rows(tmp_path, first, first, mapping=mapping)]
    assert [each["id"] for each in found] == ["trace-1", "trace-2"]
    assert found[1]["data"]["request_id"] == "trace-2"
    assert found[0]["data"]["quantities"]["visible_output_audio_tokens"] == 0


def test_a_providers_own_usage_object_goes_in_as_it_is(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            **{name: [GOOD[name]] for name in ("tenant_id", "id", "time", "request_id", "provider", "model")},
            "flavour": ["openai.chat"],
            "usage": ['{"prompt_tokens": 12, "completion_tokens": 3, "note": "a \\"b\\" $1"}'],
            "tags": ['{"team": "x"}'],
        }
    )
    frame.write_csv(tmp_path / "u.csv")
    (row,) = read(tmp_path / "u.csv")
    data = event(row)["data"]
    assert data["usage"] == {"prompt_tokens": 12, "completion_tokens": 3, "note": 'a "b" $1'}
    assert data["tags"] == {"team": "x"}


def test_no_cell_can_say_more_than_its_field(tmp_path: Path) -> None:
    """An object with something behind it would be read as other fields of the event."""
    frame = pl.DataFrame(
        {
            **{name: [GOOD[name]] for name in ("tenant_id", "id", "time", "request_id", "provider", "model")},
            "flavour": ["openai.chat"],
            "usage": ['{"prompt_tokens": 1}, "tenant_id": "t-beta", "tags": {"a": "b"}'],
        }
    )
    frame.write_csv(tmp_path / "u.csv")
    (row,) = read(tmp_path / "u.csv")
    assert row.detail == "usage: is no JSON object"


def test_a_parquet_table_has_types_of_its_own(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            **{name: [GOOD[name]] for name in ("tenant_id", "id", "request_id", "provider", "model")},
            "time": [datetime(2026, 1, 10, 10, tzinfo=UTC)],
            "uncached_input_tokens": [12],
            "final": [False],
        }
    )
    frame.write_parquet(tmp_path / "u.parquet")
    (row,) = read(tmp_path / "u.parquet")
    assert event(row)["time"] == "2026-01-10T10:00:00.000000Z"
    assert event(row)["data"]["final"] is False
    assert event(row)["data"]["quantities"] == {"uncached_input_tokens": 12}

    frame.with_columns(pl.col("uncached_input_tokens").cast(pl.Float64)).write_parquet(tmp_path / "f.parquet")
    with pytest.raises(
        LoadFileRefused, match=r"f\.parquet: uncached_input_tokens: its column is Float64; a count is a whole number"
    ):
        list(read(tmp_path / "f.parquet"))
    frame.with_columns(pl.lit(-1).alias("uncached_input_tokens")).write_parquet(tmp_path / "n.parquet")
    (row,) = read(tmp_path / "n.parquet")
    assert row.detail == "uncached_input_tokens: is no whole number from 0 to 2^63 - 1"
    frame.with_columns(pl.col("time").dt.replace_time_zone(None)).write_parquet(tmp_path / "z.parquet")
    with pytest.raises(LoadFileRefused, match="time: has no zone; --time-zone says which"):
        list(read(tmp_path / "z.parquet"))


@pytest.mark.parametrize(
    ("columns", "mapping", "rule"),
    [
        ({"extra": "1"}, FileMapping(), "column 'extra' is no field of a usage event and no meter: map it, or leave it out with --ignore"),
        ({"request_id": ...}, FileMapping(), "request_id: no column holds it, and the mapping gives it no value"),
        ({"uncached_input_tokens": ..., "visible_output_tokens": ...}, FileMapping(), "usage: neither a meter nor usage is given; a row states counts by meter, or flavour and usage"),
        ({"usage": "{}"}, FileMapping(), "usage: meters and usage are both given; a row states counts by meter, or flavour and usage"),
        ({}, FileMapping(columns={"feature": "Nope"}), "column 'Nope' is mapped and not there; it has tenant_id, id, time, request_id, provider, model, uncached_input_tokens, visible_output_tokens"),
        ({}, FileMapping(constants={"model": "other"}), "model: the file has a column of this name and the mapping another value"),
    ],
)  # fmt: skip
def test_a_file_that_nobody_could_mean_is_refused_whole(
    tmp_path: Path, columns: dict[str, Any], mapping: FileMapping, rule: str
) -> None:
    given = {name: value for name, value in {**GOOD, **columns}.items() if value is not ...}
    with pytest.raises(LoadFileRefused) as refused:
        rows(tmp_path, given, mapping=mapping)
    assert str(refused.value) == f"u.csv: {rule}"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("columns: {tokens: In}", "tokens: is no field of a usage event and no meter"),
        ("columns: {model: A}\nconstants: {model: b}", "model: is given twice"),
        ("collumns: {}", "Object contains unknown field `collumns`"),
        ("empty_counts: maybe", "Expected `str` matching regex '^(refuse|zero)$' - at `$.empty_counts`"),
        ("columns: [", "while parsing a flow node"),
    ],
)
def test_a_mapping_is_refused_by_line(tmp_path: Path, text: str, rule: str) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    with pytest.raises(LoadFileRefused) as refused:
        read_mapping(path)
    assert str(refused.value).startswith(f"{path}: {rule}")


def test_a_name_that_says_no_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "u.xlsx"
    path.write_bytes(b"")
    with pytest.raises(LoadFileRefused, match=r"u\.xlsx: its name ends in none of"):
        list(read(path))


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    for name in ("u.parquet", "u.csv.gz"):
        path = tmp_path / name
        path.write_bytes(b"not that")
        with pytest.raises(LoadFileRefused, match=rf"{name}: "):
            list(read(path))
