"""Where one event of a message ends and the next begins, and why bytes cannot be read."""

import re
from typing import Final, NamedTuple

import msgspec

from ingest.refusals import refused
from ingest.wire import UNDECODABLE, decode_any
from ledger.statements import Refused

BLANK: Final = b" \t\r\n"

_RAW: Final = msgspec.json.Decoder(msgspec.Raw)
_RAWS: Final = msgspec.json.Decoder(list[msgspec.Raw])


def lines_of(body: bytes) -> list[bytes]:
    """Return the lines that hold anything; the whole body where none does, so that it is not lost."""
    return [line for line in (line.strip(BLANK) for line in body.split(b"\n")) if line] or [body]


class Piece(NamedTuple):
    """The bytes of one event, or those from which on nothing can be told apart, and then why."""

    raw: bytes
    refused: Refused | None = None


def pieces_of(body: bytes, is_lines: bool) -> list[Piece]:
    """Cut a message into its events; the same pieces for the same bytes, whoever asks."""
    if is_lines:
        return [Piece(line) for line in lines_of(body)]
    start = body.lstrip(BLANK)[:1]
    if start != b"[" and start != b"{":
        return [Piece(body, why_unreadable(body) or refused("not_an_event", "a message must be an object or an array"))]
    try:
        return [Piece(bytes(raw)) for raw in _RAWS.decode(body)] if start == b"[" else [Piece(bytes(_RAW.decode(body)))]
    except UNDECODABLE:
        return _delimit(body)


# A string that never ends matches as its lone quote; possessive, so that no bytes make it try twice.
_MARKS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["\[\]{},]', re.DOTALL)
_CLOSES: Final = {b"{": b"}", b"[": b"]"}
_DEEP: Final = 500


def _delimit(body: bytes) -> list[Piece]:
    """Cut a message that does not decode as a whole into its events, by brackets and strings alone.

    Commas at the top of a pack separate events whatever is wrong inside one of them. Where brackets do not match, a
    string does not end or the bytes run out, all from that event's first byte on is one piece.
    """
    start = len(body) - len(body.lstrip(BLANK))
    is_pack = body[start : start + 1] == b"["
    item_starts_at = start + 1 if is_pack else start
    pieces: list[Piece] = []
    closers: list[bytes] = []
    deepest = 0
    ends_at = -1
    for match in _MARKS.finditer(body, item_starts_at):
        mark = match[0]
        if mark in _CLOSES:
            closers.append(_CLOSES[mark])
            deepest = max(deepest, len(closers))
        elif mark == b'"':
            break
        elif mark in (b"}", b"]"):
            if closers:
                if closers.pop() != mark:
                    break
                if not closers and not is_pack:
                    ends_at = match.end()
                    pieces.append(Piece(body[start:ends_at]))
                    break
            elif mark == b"]" and is_pack:
                pieces.append(Piece(body[item_starts_at : match.start()].strip(BLANK)))
                ends_at = match.end()
                break
            else:
                break
        elif mark == b"," and not closers and is_pack:
            pieces.append(Piece(body[item_starts_at : match.start()].strip(BLANK)))
            item_starts_at = match.end()
    # A comma too many holds no event, so nothing is lost with it.
    pieces = [piece for piece in pieces if piece.raw]
    rest = body[ends_at if ends_at >= 0 else item_starts_at :].strip(BLANK)
    if rest and ends_at >= 0:
        pieces.append(Piece(rest, refused("trailing_bytes", "bytes follow after the end of the message")))
    elif rest and why_unreadable(rest) is None:
        # Only the closing bracket of the pack is missing; its last event is whole.
        pieces.append(Piece(rest))
    elif rest and deepest > _DEEP:
        pieces.append(Piece(rest, refused("nested_too_deep", "the value is nested too deep")))
    elif rest or not pieces:
        pieces.append(Piece(rest or body, refused("truncated", "from here on no event can be told from the next")))
    return pieces


def why_unreadable(raw: bytes) -> Refused | None:
    """Return why bytes are no JSON that we can read, or None if they are."""
    if not raw.strip(BLANK):
        return refused("empty_message", "the message is empty")
    try:
        decode_any(raw)
    except RecursionError:
        return refused("nested_too_deep", "the value is nested too deep")
    except msgspec.ValidationError as error:
        return refused("out_of_range", str(error))
    except ArithmeticError:
        return refused("out_of_range", "a number's exponent is beyond all limits")
    except ValueError as error:
        if _has_lone_surrogate(raw):
            return refused("lone_surrogate", "a text holds half of a surrogate pair")
        return refused("truncated" if "truncated" in str(error) else "invalid_json", str(error))
    return None


_ESCAPES: Final = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)


def _has_lone_surrogate(raw: bytes) -> bool:
    """Say whether a \\u escape names half of a pair without the other half directly beside it."""
    high_ends_at = -1
    for match in _ESCAPES.finditer(raw):
        code = int(match[1], 16) if match[1] else 0
        if 0xDC00 <= code <= 0xDFFF:
            if match.start() != high_ends_at:
                return True
            high_ends_at = -1
        else:
            if high_ends_at >= 0:
                return True
            high_ends_at = match.end() if 0xD800 <= code <= 0xDBFF else -1
    return high_ends_at >= 0
