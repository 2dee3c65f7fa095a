"""Language tags as rollups need them: primary subtag plus script."""

import re
from functools import lru_cache
from typing import Final

UNDETERMINED: Final = "und"

# Primary subtag, up to three extended ones, script, and well-formed rest. Source: RFC 5646, section 2.1.
_TAG: Final = re.compile(
    r"([a-z]{2,3})(?:-[a-z]{3}){0,3}(?:-([a-z]{4}))?(?:-(?:[a-z0-9]{1,8}))*", re.IGNORECASE | re.ASCII
).fullmatch


@lru_cache(maxsize=4096)
def language_of(sent: str | None) -> str:
    """Return primary subtag plus script (`zh-Hant` of `ZH_hant_TW`), or `und` for a missing or malformed tag."""
    match = _TAG(sent.replace("_", "-")) if sent else None
    if match is None:
        return UNDETERMINED
    primary, script = match.groups()
    return f"{primary.lower()}-{script.capitalize()}" if script else primary.lower()
