"""Bodies of requests: read within a limit, and decoded into the type that the document states."""

import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from api.errors import BodyTooLarge, EmptyBody, InvalidRequest, MalformedBody, UnsupportedMediaType
from ledger.times import YEARS, is_within_years, micros
from quotas.errors import AskRefused

Decoded = TypeVar("Decoded")

WITHIN_YEARS: Final = f"must be between the years {YEARS.start} and {YEARS.stop}"
ZERO_BYTE: Final = "must not hold a zero byte"

_PLACE: Final = re.compile(r"^(?P<rule>.*?)(?: - at `\$\.?(?P<name>[^`]*)`)?$", re.DOTALL)


async def read_body(request: Request, bytes_max: int) -> bytes:
    """Return the body of a request.

    Errors: `BodyTooLarge` as soon as it is known to be, `EmptyBody`.
    """
    return await read_stream(request.receive, request.headers.get("content-length", ""), bytes_max)


async def read_stream(receive: Receive, stated: str, bytes_max: int, *, may_be_empty: bool = False) -> bytes:
    """Return a body as it comes, of which the header states a length or nothing. Errors: as above."""
    if stated.isdecimal() and int(stated) > bytes_max:
        raise BodyTooLarge(f"{stated} bytes; at most {bytes_max} are read")
    body = b""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > bytes_max:
            raise BodyTooLarge(f"more than {bytes_max} bytes")
        if not message.get("more_body", False):
            body = chunk if not chunks else b"".join((*chunks, chunk))
            break
        chunks.append(chunk)
    if body.isspace() or not (body or may_be_empty):
        raise EmptyBody("the body is empty")
    return body


def check_json(content_type: str, content_encoding: str | None) -> None:
    """Refuse a body that is not JSON by its own headers; a body that says nothing is taken at its word.

    Errors: `UnsupportedMediaType`.
    """
    if content_encoding is not None and content_encoding.lower() != "identity":
        raise UnsupportedMediaType("content-encoding is not supported: send the body as it is")
    name = content_type.partition(";")[0].strip().lower()
    if name not in ("", "application/json") and not name.endswith("+json"):
        raise UnsupportedMediaType(f"content-type is {name!r:.80}; this takes application/json")


def decode(decoder: "msgspec.json.Decoder[Decoded]", body: bytes) -> Decoded:
    """Return what the body says.

    Errors: `InvalidRequest` names field and rule, `MalformedBody` for what is no JSON.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        found = _PLACE.match(str(error))
        assert found is not None, "the pattern takes every text"
        if isinstance(error.__cause__, AskRefused):
            # A rule of the type's own: it names the field, and the place is the object's.
            fault = error.__cause__
            raise InvalidRequest(
                f"{found['name']}.{fault.field}" if found["name"] else fault.field, fault.rule
            ) from None
        raise InvalidRequest(found["name"] or "body", _said(found["rule"])) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedBody(f"{str(error)[:200]}") from None


def check_values(body: Any) -> None:
    """Refuse what a decoded body may not hold wherever it stands: a text that no column takes, a day or an instant of no year of ours.

    Errors: `InvalidRequest` with the place of the first.
    """
    for place, value in _values(body):
        if isinstance(value, str) and "\0" in value:
            raise InvalidRequest(place, ZERO_BYTE)
        if isinstance(value, date) and not _is_within_years(value):
            raise InvalidRequest(place, WITHIN_YEARS)


def _is_within_years(value: date) -> bool:
    return is_within_years(micros(value)) if isinstance(value, datetime) else value.year in YEARS


def _values(body: Any) -> Iterator[tuple[str, Any]]:
    waiting = [("", body)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, msgspec.Struct):
            inner = [(f"{place}.{name}" if place else name, getattr(value, name)) for name in value.__struct_fields__]
        elif isinstance(value, Mapping):
            inner = [each for name in value for each in ((place, name), (f"{place}.{name}", value[name]))]
        elif isinstance(value, list | tuple):
            inner = [(f"{place}[{index}]", each) for index, each in enumerate(value)]
        else:
            yield place, value
            continue
        waiting.extend(reversed(inner))


def _said(rule: str) -> str:
    return rule[:1].lower() + rule[1:]
