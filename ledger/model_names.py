"""From the name that a provider or gateway reports to a canonical id, by declared rules and nothing looser."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_VERSION_SUFFIX: Final = re.compile(r"-v\d+(:\d+)?$", re.ASCII)


@dataclass(frozen=True, slots=True)
class NameRules:
    """What may stand around a known name: data, kept per provider, that a person reviews."""

    hosting_prefixes: tuple[str, ...] = ()
    """Whole prefixes such as `anthropic/` or `us.anthropic.`; a prefix that is not listed is part of another name."""
    has_version_suffix: bool = False
    """Whether `-v1` or `-v1:0` at the end may be left out."""
    folds_case: bool = False


def resolve(name: str, known: Mapping[str, str], rules: NameRules) -> str | None:
    """Return the canonical id of a name, or None: the name itself first, so that a specific entry beats a general one.

    Shape: `known` maps exact ids and aliases to canonical ids; with `folds_case` its keys are in lower case.
    """
    for candidate in candidates(name, rules):
        found = known.get(candidate)
        if found is not None:
            return found
    return None


def candidates(name: str, rules: NameRules) -> Iterator[str]:
    """Yield what a name may be known as, from the most specific to the most general."""
    whole = name.lower() if rules.folds_case else name
    yield whole
    bare = _VERSION_SUFFIX.sub("", whole) if rules.has_version_suffix else whole
    if bare != whole:
        yield bare
    # The longest prefix that is declared is the one that was meant: `us.anthropic.` before `us.`.
    for prefix in sorted(rules.hosting_prefixes, key=len, reverse=True):
        if whole.startswith(prefix) and len(whole) > len(prefix):
            yield whole.removeprefix(prefix)
            if bare != whole and bare.startswith(prefix):
                yield bare.removeprefix(prefix)
            return
