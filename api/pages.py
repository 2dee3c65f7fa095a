"""Answers by pages: how many go on one."""

from api.errors import InvalidRequest


def limit_of(text: str | None, most: int) -> int:
    """Return how many a caller wants on a page, and no more than it may have.

    Errors: `InvalidRequest`.
    """
    if text is None:
        return most
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0):
        raise InvalidRequest("limit", "must be a whole number above zero")
    return min(int(text), most)
