"""From the name that a provider or gateway reports to a model that we know, by declared rules and nothing looser."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

RuleKind = Literal["prefix", "version_suffix", "fold_case"]
Known = TypeVar("Known")

_VERSION_SUFFIX: Final = re.compile(r"-v\d+(:\d+)?$", re.ASCII)


@dataclass(frozen=True, slots=True)
class NameRule:
    """One thing that may be done to a name on the way to a known one. Rules are data, kept per provider and in order.

    prefix: `text`, a whole prefix such as `us.anthropic.`, may be left out; what is not listed is part of another name.
    version_suffix: `-v1` or `-v1:0` at the end may be left out.
    fold_case: capitals do not count, unless two models then have the same name.
    """

    kind: RuleKind
    text: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.text}" if self.text else self.kind


NameRules = tuple[NameRule, ...]
"""In the order of their precedence."""


@dataclass(frozen=True, slots=True)
class _Form:
    """What a name may be known as, and what was done to get there."""

    text: str
    is_folded: bool = False
    has_lost_prefix: bool = False


def resolve(
    name: str, rules: NameRules, exact: Callable[[str], Known | None], folded: Callable[[str], Known | None]
) -> Known | None:
    """Return what a name stands for, or None.

    The forms of a name are tried in the order in which the rules make them: the name itself, what the first rule makes of
    it, then what the second makes of each of those. So a specific entry always beats the one that a rule leads to, and
    between two rules the earlier one counts. `folded` is asked for lower-case forms.
    """
    for form in _forms(name, rules):
        found = folded(form.text) if form.is_folded else exact(form.text)
        if found is not None:
            return found
    return None


def _forms(name: str, rules: NameRules) -> Iterator[_Form]:
    forms = [_Form(name)]
    yield forms[0]
    for rule in rules:
        for form in list(forms):
            made = _applied(rule, form)
            if made is not None and made not in forms:
                forms.append(made)
                yield made


def _applied(rule: NameRule, form: _Form) -> _Form | None:
    """Return what a rule makes of a form, or None where it changes nothing."""
    if rule.kind == "fold_case":
        return _Form(form.text.lower(), True, form.has_lost_prefix)
    if rule.kind == "version_suffix":
        bare = _VERSION_SUFFIX.sub("", form.text)
        return None if bare == form.text else _Form(bare, form.is_folded, form.has_lost_prefix)
    prefix = rule.text.lower() if form.is_folded else rule.text
    # One prefix only: `anthropic/anthropic/x` is not what anybody calls a model.
    if form.has_lost_prefix or not form.text.startswith(prefix) or form.text == prefix:
        return None
    return _Form(form.text.removeprefix(prefix), form.is_folded, True)
