"""Files of usage to events: CSV and Parquet by Polars, event files as they are. The same rows give the same bytes.

A column of a table is a field of the usage event, or a meter; a mapping names columns that are called otherwise. Text
stays text and counts are whole numbers all the way: nothing passes through a float. A row that cannot be an event is
kept as it was read, with the field and the rule.
"""

import gzip
import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

import msgspec
import polars as pl
import yaml

from ingest.messages import Piece, lines_of, pieces_of
from ingest.wire import USAGE_TYPE, UsageData
from ledger.errors import LedgerError
from ledger.meters import METERS

_ROWS_AT_ONCE: Final = 50_000
"""A piece of a table that is held in memory as events."""


class LoadFileRefused(LedgerError):
    """A file cannot be loaded; the message names the file, the field and the rule. None of its rows is staged."""

    def __init__(self, file: str, rule: str) -> None:
        self.file, self.rule = file, rule
        super().__init__(f"{file}: {rule}")


class FileMapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a table's columns mean, where their names do not say it: a YAML file."""

    columns: Mapping[str, str] = {}
    """Field or meter to the column that holds it."""
    constants: Mapping[str, str | int | bool] = {}
    """Field or meter to the value that it has in every row."""
    rows: Mapping[str, str] = {}
    """Field to a text that the number of the row is put behind: an id for rows that have none."""
    ignore: Sequence[str] = ()
    """Columns that are left out."""
    time_zone: str | None = None
    """Of times without an offset."""
    empty_counts: Annotated[str, msgspec.Meta(pattern="^(refuse|zero)$")] = "refuse"
    """What an empty cell means in a column of counts."""


class FileRow(NamedTuple):
    """One row of a file: the event that it says, or the row as it was read and why it is none."""

    row_no: int
    body: bytes
    reason: str | None = None
    detail: str | None = None
    """Field and rule."""


def read_mapping(path: Path) -> FileMapping:
    """Read a mapping; refuse one with unknown words, fields or a value for a field that another line gives already."""
    try:
        text = path.read_text(encoding="utf-8")
        said = msgspec.convert(yaml.safe_load(text) or {}, FileMapping)
    except (yaml.YAMLError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise LoadFileRefused(str(path), " ".join(str(error).split())) from None
    seen: set[str] = set()
    for part in (said.columns, said.constants, said.rows):
        for field in part:
            if field not in FIELDS and field not in METERS:
                raise LoadFileRefused(str(path), f"{field}: is no field of a usage event and no meter")
            if field in seen:
                raise LoadFileRefused(str(path), f"{field}: is given twice")
            seen.add(field)
    return said


# --- What the columns of a table are ----------------------------------------------------------------------------------

ENVELOPE: Final = ("id", "time")
_LEFT_OUT: Final = frozenset({"usage_frames", "quantities", "local_estimate"})
_WHOLE: Final = frozenset(
    {
        "attempt", "sequence", "max_output_tokens", "provider_calls", "latency_ms", "ttft_ms", "queue_ms", "prefill_ms",
        "decode_ms", "delivered_output_tokens", "revision", "time_unix",
    }
)  # fmt: skip
_FLAGS: Final = frozenset({"final", "reservation_open"})
_JSON: Final = frozenset({"usage", "tags"})
FIELDS: Final = (*ENVELOPE, *(name for name in UsageData.__struct_fields__ if name not in _LEFT_OUT))
"""Names that a column may have besides those of meters."""
REQUIRED: Final = ("tenant_id", "id", "time", "request_id", "provider", "model")
# What the reader wants stated or absent, never null.
_DEFAULTS: Final[Mapping[str, Any]] = {"status": "ok", "basis": "reported", "revision": 0, "reservation_open": False}

STAGED: Final = pl.Schema(
    {"row_no": pl.Int64(), "body": pl.String(), "field": pl.String(), "rule": pl.String(), "raw": pl.String()}
)
"""Of what `usage_events` gives: `body` is the event, or `raw` the row as it was read with the field and the rule."""

_ZONED: Final = r"(?i)^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,12})?(?:Z|[+-]\d\d:\d\d)$"
_NAIVE: Final = r"(?i)^(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d{1,12}))?$"
_COUNT: Final = r"^[+]?[0-9]{1,19}$"


class _Field(NamedTuple):
    """A field of the event as an expression over the table, and why a row cannot have it (null: it can)."""

    name: str
    value: pl.Expr
    refusal: pl.Expr | None = None


def usage_events(frame: pl.LazyFrame, mapping: FileMapping, source: str, name: str) -> pl.LazyFrame:
    """Return the events that the rows of a table say.

    Shape: STAGED, a row for each row, in order. `frame` has the column `row_no` beside its own.
    Errors: `LoadFileRefused` for a column that nobody knows, one that is missing, or one of counts that holds floats.
    """
    schema = frame.collect_schema()
    columns = [column for column in schema.names() if column != "row_no"]
    given = _columns_of(columns, mapping, name)
    fields = [
        *(_field(field, pl.col(column), schema[column], mapping, name) for field, column in given.items()),
        *(_Field(field, pl.lit(value)) for field, value in mapping.constants.items()),
        *(
            _Field(field, pl.concat_str([pl.lit(text), pl.col("row_no").cast(pl.String)]))
            for field, text in mapping.rows.items()
        ),
    ]
    texts = {field.name: field.value for field in fields if field.name in _JSON}
    fields = [
        field if field.name not in _JSON else field._replace(value=_stands_in(field.name, field.value))
        for field in fields
    ]
    by_name = {field.name: field for field in fields}
    meters = [field for field in fields if field.name in METERS]
    data = [
        field.value.alias(field.name) for field in fields if field.name not in METERS and field.name not in ENVELOPE
    ]
    for field_name, default in _DEFAULTS.items():
        if field_name in by_name:
            data = [e if e.meta.output_name() != field_name else e.fill_null(default) for e in data]
    if meters:
        has_none = pl.all_horizontal([field.value.is_null() for field in meters])
        counts = pl.struct([field.value.alias(field.name) for field in meters])
        data.append(pl.when(has_none).then(None).otherwise(counts).alias("quantities"))
        fields += [
            _Field(field.name, field.value, _empty(field, has_none))
            for field in meters
            if mapping.empty_counts != "zero"
        ]
    event = pl.struct(
        pl.lit("1.0").alias("specversion"),
        pl.lit(USAGE_TYPE).alias("type"),
        by_name["id"].value.alias("id"),
        pl.lit(source).alias("source"),
        (by_name["time"].value if "time" in by_name else pl.lit(None, dtype=pl.String)).alias("time"),
        pl.struct(data).alias("data"),
    )
    refusals = [(field.name, field.refusal) for field in fields if field.refusal is not None]
    rule = pl.coalesce([refusal for _, refusal in refusals] or [pl.lit(None, dtype=pl.String)])
    which = pl.coalesce(
        [pl.when(refusal.is_not_null()).then(pl.lit(field)).otherwise(None) for field, refusal in refusals]
        or [pl.lit(None, dtype=pl.String)]
    )
    raw = pl.struct(columns).struct.json_encode()
    body = event.struct.json_encode()
    for field_name in _JSON & by_name.keys():
        # An object stands in its cell as JSON text: it goes in as it is.
        body = _with_object(body, field_name, texts[field_name])
    return frame.select(
        pl.col("row_no").cast(pl.Int64),
        pl.when(rule.is_null()).then(body).alias("body"),
        which.alias("field"),
        rule.alias("rule"),
        pl.when(rule.is_not_null()).then(raw).alias("raw"),
    )


def _columns_of(columns: Sequence[str], mapping: FileMapping, name: str) -> dict[str, str]:
    """Return which column holds which field, or refuse the file."""
    missing = [column for column in mapping.columns.values() if column not in columns]
    if missing:
        raise LoadFileRefused(name, f"column {missing[0]!r} is mapped and not there; it has {', '.join(columns)}")
    given = dict(mapping.columns)
    taken = {*given.values(), *mapping.ignore}
    for column in columns:
        if column in taken:
            continue
        if column not in FIELDS and column not in METERS:
            raise LoadFileRefused(
                name,
                f"column {column!r} is no field of a usage event and no meter: map it, or leave it out with --ignore",
            )
        if column in given or column in mapping.constants or column in mapping.rows:
            raise LoadFileRefused(name, f"{column}: the file has a column of this name and the mapping another value")
        given[column] = column
    known = {*given, *mapping.constants, *mapping.rows}
    for field in REQUIRED:
        if field not in known and not (field == "time" and {"time_unix", "time_unit"} <= known):
            raise LoadFileRefused(name, f"{field}: no column holds it, and the mapping gives it no value")
    has_meters = any(field in METERS for field in known)
    if has_meters == ("usage" in known):
        both = "meters and usage are both given" if has_meters else "neither a meter nor usage is given"
        raise LoadFileRefused(name, f"usage: {both}; a row states counts by meter, or flavour and usage")
    if "usage" in known and "flavour" not in known:
        raise LoadFileRefused(name, "flavour: no column holds it; usage needs whose it is")
    return given


def _field(field: str, column: pl.Expr, dtype: pl.DataType, mapping: FileMapping, name: str) -> _Field:
    """Return how a column becomes a field, by what the field is and what the column holds."""
    if field in METERS or field in _WHOLE:
        if dtype == pl.String:
            text = column.str.strip_chars()
            is_count = text.str.contains(_COUNT)
            value = pl.when(is_count).then(text).cast(pl.Int64, strict=False)
            refusal = pl.when((text != "") & (~is_count | value.is_null())).then(
                pl.concat_str([pl.lit("'"), text.str.slice(0, 60), pl.lit("' is no whole number below 2^63")])
            )
        elif dtype.is_integer():
            value = column.cast(pl.Int64, strict=False)
            refusal = pl.when(
                column.is_not_null() & (value.is_null() | ((value < 0) & pl.lit(field != "time_unix")))
            ).then(pl.lit("is no whole number from 0 to 2^63 - 1"))
        else:
            raise LoadFileRefused(name, f"{field}: its column is {dtype}; a count is a whole number, never a float")
        if field in METERS and mapping.empty_counts == "zero":
            value = value.fill_null(0)
        return _Field(field, value, refusal)
    if field in _FLAGS:
        if dtype == pl.Boolean:
            return _Field(field, column)
        if dtype == pl.String:
            text = column.str.strip_chars().str.to_lowercase()
            value = pl.when(text == "true").then(pl.lit(True)).when(text == "false").then(pl.lit(False))
            refusal = pl.when((text != "") & value.is_null()).then(pl.lit("is neither true nor false"))
            return _Field(field, value, refusal)
        raise LoadFileRefused(name, f"{field}: its column is {dtype}; it is true or false")
    if field == "time":
        return _time(column, dtype, mapping.time_zone, name)
    if dtype in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    elif dtype != pl.String:
        raise LoadFileRefused(name, f"{field}: its column is {dtype}; it is a text")
    if field in _JSON:
        text = column.str.strip_chars()
        is_object = text.map_batches(_are_objects, return_dtype=pl.Boolean())
        return _Field(
            field, pl.when(text != "").then(text), pl.when((text != "") & ~is_object).then(pl.lit("is no JSON object"))
        )
    return _Field(field, pl.when(column != "").then(column))


def _empty(field: _Field, has_none: pl.Expr) -> pl.Expr:
    """Refuse a count that is left empty beside others: unknown is not zero."""
    return pl.when(field.value.is_null() & ~has_none).then(
        pl.lit("is empty beside other counts: write 0, or say `empty_counts: zero` in the mapping")
    )


def _time(column: pl.Expr, dtype: pl.DataType, zone: str | None, name: str) -> _Field:
    if isinstance(dtype, pl.Datetime):
        naive = column.dt.cast_time_unit("us") if dtype.time_unit != "us" else column
        if dtype.time_zone is not None:
            return _Field("time", _utc_text(naive.dt.convert_time_zone("UTC")))
        if zone is None:
            raise LoadFileRefused(name, "time: has no zone; --time-zone says which")
        return _local(naive, zone, column.is_not_null())
    if dtype != pl.String:
        raise LoadFileRefused(name, f"time: its column is {dtype}; it is a time, or text such as 2026-01-31T10:00:00Z")
    text = column.str.strip_chars()
    is_zoned, is_naive = text.str.contains(_ZONED), text.str.contains(_NAIVE)
    wrong = pl.concat_str([pl.lit("'"), text.str.slice(0, 60), pl.lit("' is no time such as 2026-01-31T10:00:00Z")])
    if zone is None:
        rule = (
            pl.when(is_naive)
            .then(pl.concat_str([pl.lit("'"), text, pl.lit("' has no zone; --time-zone says which")]))
            .when((text != "") & ~is_zoned)
            .then(wrong)
        )
        return _Field("time", pl.when(is_zoned).then(text), rule)
    parts = text.str.extract_groups(_NAIVE).struct
    # Digits beyond the sixth are cut, as everywhere: rounding could move the last instant of a month.
    fraction = parts.field("3").fill_null("").str.slice(0, 6).str.pad_end(6, "0")
    plain = pl.concat_str([parts.field("1"), pl.lit("T"), parts.field("2"), pl.lit("."), fraction])
    naive = plain.str.to_datetime("%Y-%m-%dT%H:%M:%S%.6f", time_unit="us", strict=False)
    local = _local(naive, zone, is_naive)
    rule = (
        pl.when(is_naive & naive.is_null())
        .then(wrong)
        .when(local.refusal.is_not_null())  # type: ignore[union-attr]
        .then(local.refusal)
        .when((text != "") & ~is_zoned & ~is_naive)
        .then(wrong)
    )
    return _Field("time", pl.when(is_zoned).then(text).otherwise(local.value), rule)


def _local(naive: pl.Expr, zone: str, is_stated: pl.Expr) -> _Field:
    """Return local times as instants; an hour that came twice, or never, is no instant."""
    there = naive.dt.replace_time_zone(zone, ambiguous="null", non_existent="null")
    rule = pl.when(is_stated & naive.is_not_null() & there.is_null()).then(
        pl.lit(f"is no one instant of {zone}: the clocks change there; give it with its offset")
    )
    return _Field("time", _utc_text(there.dt.convert_time_zone("UTC")), rule)


def _utc_text(instant: pl.Expr) -> pl.Expr:
    return instant.dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")


def _are_objects(texts: pl.Series) -> pl.Series:
    """Say which texts are JSON objects, and nothing but one: what stood behind it would be read as fields of the event."""
    return pl.Series([text is None or _is_object(text) for text in texts], dtype=pl.Boolean())


def _is_object(text: str) -> bool:
    try:
        _TOP.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def _stands_in(field: str, text: pl.Expr) -> pl.Expr:
    """Return a mark for an object that is put in once the rest is JSON: as a text it would be quoted."""
    return pl.when(text.is_not_null()).then(pl.lit(f"@{field}@"))


def _with_object(body: pl.Expr, field: str, text: pl.Expr) -> pl.Expr:
    """Return JSON in which the mark of a field is the object that stands in its cell."""
    stated = pl.concat_str([pl.lit(f'"{field}":'), text])
    return (
        pl.when(text.is_null()).then(body).otherwise(body.str.replace(f'"{field}":"@{field}@"', stated, literal=True))
    )


# --- Files ------------------------------------------------------------------------------------------------------------


def kind_of(path: Path) -> str:
    """Return csv, parquet or events, by the name's ends; anything but a table is a file of events."""
    ends = [end.lower() for end in path.suffixes]
    if ends and ends[-1] == ".gz":
        ends.pop()
    last = ends[-1] if ends else ""
    if last in (".csv", ".parquet"):
        return last[1:]
    if last in (".ndjson", ".jsonl", ".json"):
        return "events"
    raise LoadFileRefused(
        path.name, "its name ends in none of .csv, .parquet, .ndjson, .jsonl, .json (and .gz of those)"
    )


def sha256_and_size(path: Path) -> tuple[str, int]:
    """Return the SHA-256 of a file's bytes as hex, and how many there are."""
    if not path.is_file():
        raise LoadFileRefused(str(path), "no such file")
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest(), opened.tell()


def check_zone(zone: str | None) -> None:
    """Raise LoadFileRefused for a zone that is none."""
    if zone is not None and zone not in available_timezones():
        raise LoadFileRefused("--time-zone", f"{zone!r} is no time zone such as Europe/Berlin")
    if zone is not None:
        ZoneInfo(zone)


def rows_of(path: Path, mapping: FileMapping, source: str) -> Iterator[list[FileRow]]:
    """Yield the rows of a file in order, some thousands at a time. Its kind is told by its name.

    Errors: `LoadFileRefused`; what is wrong with one row stands in that row.
    """
    kind = kind_of(path)
    try:
        if kind == "events":
            yield from _event_rows(path, source)
        else:
            yield from _table_rows(path, kind, mapping, source)
    except (pl.exceptions.PolarsError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LoadFileRefused(path.name, f"cannot be read: {str(error).splitlines()[0]}") from None


def _table_rows(path: Path, kind: str, mapping: FileMapping, source: str) -> Iterator[list[FileRow]]:
    frame = read_table(path, kind)
    check_zone(mapping.time_zone)
    for start in range(0, max(frame.height, 1), _ROWS_AT_ONCE):
        some = frame.slice(start, _ROWS_AT_ONCE)
        said = usage_events(some.lazy(), mapping, source, path.name).collect()
        assert said.schema == STAGED, said.schema
        rows = []
        for row_no, body, field, rule, raw in said.iter_rows():
            if rule is None:
                rows.append(FileRow(row_no, body.encode()))
            else:
                rows.append(FileRow(row_no, raw.encode(), "bad_row", f"{field}: {rule}"))
        yield rows


def read_table(path: Path, kind: str) -> pl.DataFrame:
    """Read a table with its rows numbered from 1. Cells of a CSV stay text: a reader that guesses would make floats."""
    if kind == "parquet":
        frame = pl.read_parquet(path)
    else:
        frame = pl.read_csv(path, infer_schema=False)
    if "row_no" in frame.columns:
        raise LoadFileRefused(path.name, "column 'row_no' is a name of ours: rename it")
    return frame.with_row_index("row_no", offset=1)


_TOP: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _event_rows(path: Path, source: str) -> Iterator[list[FileRow]]:
    """Read events as they are, each under the load's source; what it named itself stays beside it as `sentsource`."""
    body = gzip.decompress(path.read_bytes()) if path.suffix.lower() == ".gz" else path.read_bytes()
    is_array = body.lstrip()[:1] == b"["
    pieces = pieces_of(body, False) if is_array else [Piece(line) for line in lines_of(body)]
    encoded = msgspec.Raw(msgspec.json.encode(source))
    for start in range(0, len(pieces), _ROWS_AT_ONCE):
        yield [
            _event_row(number, piece, encoded)
            for number, piece in enumerate(pieces[start : start + _ROWS_AT_ONCE], start + 1)
        ]


def _event_row(number: int, piece: Piece, source: msgspec.Raw) -> FileRow:
    raw, why = piece
    if why is not None:
        return FileRow(number, raw, why.reason, why.detail)
    try:
        event = _TOP.decode(raw)
    except (ValueError, RecursionError):
        # The reader says what is wrong with it.
        return FileRow(number, raw)
    if bytes(event.get("type", b"")) == b'"gpu.node.window.v1"':
        return FileRow(
            number, raw, "unknown_type", f"type: a load takes {USAGE_TYPE} only; a node's window cannot be reverted"
        )
    sent = event.pop("source", None)
    event["source"] = source
    if sent is not None and bytes(sent) != bytes(source):
        event["sentsource"] = sent
    return FileRow(number, msgspec.json.encode(event))


__all__ = [
    "FIELDS",
    "REQUIRED",
    "FileMapping",
    "FileRow",
    "LoadFileRefused",
    "read_mapping",
    "rows_of",
    "sha256_and_size",
    "usage_events",
]
