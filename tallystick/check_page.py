"""The last check as one page: a file that needs nothing from anywhere, and holds what is written in `ledger.check_results`."""

import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Final

from ledger.check_runs import CheckResult, CheckRun
from tallystick.check_words import bound_of, shown

_STYLE: Final = """
:root { --ink: #24201b; --soft: #6d655a; --line: #e2dbd0; --paper: #fffdf9; --box: #f6f1e8; --mark: #8a5a2b;
  --good: #2f6b3a; --bad: #9a3324; --warn: #8a5a00; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #ece5da; --soft: #a89f92; --line: #403a32; --paper: #1b1815; --box: #25211c;
  --mark: #d9a066; --good: #86c795; --bad: #eb9585; --warn: #e3b45c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 0.25rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 0.25rem; }
p { margin: 0.25rem 0; }
.soft { color: var(--soft); }
.tally { display: flex; flex-wrap: wrap; gap: 0.5rem 2rem; list-style: none; margin: 1rem 0 0; padding: 0.75rem 1rem;
  background: var(--box); border-radius: 8px; }
.tally strong { font-size: 1.3rem; margin-right: 0.3rem; font-variant-numeric: tabular-nums; }
.group { color: var(--soft); font-size: 0.9rem; max-width: 48rem; }
article { margin: 0.75rem 0; padding: 0.9rem 1.1rem; border: 1px solid var(--line); border-left: 4px solid var(--line);
  border-radius: 8px; }
article.fail, article.broken { border-left-color: var(--bad); }
article.warn { border-left-color: var(--warn); }
article.passed { border-left-color: var(--good); }
article h3 { margin: 0; font-size: 1rem; overflow-wrap: anywhere; }
table { width: 100%; border-collapse: collapse; margin: 0.5rem 0; font-size: 0.92rem; }
th, td { padding: 0.3rem 0.8rem 0.3rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top;
  overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 600; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.word { font-weight: 700; white-space: nowrap; }
.fail .word, .broken .word, .word.fail, .word.broken { color: var(--bad); }
.warn .word, .word.warn { color: var(--warn); }
.word.passed { color: var(--good); }
.word.unknown { color: var(--soft); }
dl { margin: 0.5rem 0 0; display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.2rem 0.8rem; font-size: 0.92rem; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
code { font: 0.88em/1.4 ui-monospace, "DejaVu Sans Mono", monospace; background: var(--box); padding: 0.1em 0.3em; border-radius: 4px; }
details { margin: 0.75rem 0; }
summary { cursor: pointer; color: var(--mark); }
@media (max-width: 40rem) {
  body { padding: 1rem; }
  thead { display: none; }
  tr { display: grid; grid-template-columns: 1fr auto; padding: 0.5rem 0; border-bottom: 1px solid var(--line); }
  td { border: 0; padding: 0.05rem 0; }
  td.bound, td.sample { grid-column: 1 / -1; text-align: left; white-space: normal; color: var(--soft); font-size: 0.88rem; }
  td.sample:not(:empty)::before { content: "of "; }
  td.word { grid-column: 2; text-align: right; }
  dl { grid-template-columns: 1fr; }
  dt { margin-top: 0.3rem; }
}
"""
_WORDS: Final = {
    "broken": "broken check",
    "fail": "failed",
    "warn": "warning",
    "unknown": "not enough to say",
    "passed": "passed",
}
_MEANS: Final = {
    "broken": "The check itself could not run. The data may be in order; nothing is known about it.",
    "fail": "Somebody must act.",
    "warn": "This can be in order: a replay, a backfill, a quiet night. Look at it today.",
    "unknown": "Too little arrived, or too little is known of before. This is no pass.",
    "passed": "Within its bounds.",
}


def page(run: CheckRun, results: Sequence[CheckResult]) -> str:
    """Return the page of a run."""
    tally = "".join(
        f'<li><strong class="word {state}">{count:,}</strong>{_WORDS[state]}</li>'
        for state, count in (
            ("broken", run.broken_count),
            ("fail", run.failed_count),
            ("warn", run.warned_count),
            ("unknown", run.unknown_count),
            ("passed", run.passed_count),
        )
    )
    again = f", every {run.every_seconds:,.0f} s" if run.every_seconds is not None else ", by hand"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"content-security-policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{_headline(run)} · Tallystick checks</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<header>\n<h1>{_headline(run)}</h1>\n"
        f"<p>What arrived from {_time(run.window_starts_at)} to {_time(run.window_ends_at)} UTC: {run.request_count:,} requests.</p>\n"
        f'<p class="soft">Checked at {_time(run.ended_at)} UTC{again}. If that is long ago, nobody is checking.</p>\n'
        f'<ul class="tally">{tally}</ul>\n</header>\n<main>\n{"".join(_sections(results))}</main>\n</body>\n</html>\n'
    )


def write_page(file: Path, run: CheckRun, results: Sequence[CheckResult]) -> None:
    """Write the page of a run; who reads the file sees the old page or the new one, and no half."""
    file.parent.mkdir(parents=True, exist_ok=True)
    other = file.with_name(f".{file.name}.{os.getpid()}")
    other.write_text(page(run, results), encoding="utf-8")
    other.replace(file)


def _headline(run: CheckRun) -> str:
    if run.broken_count:
        return f"{_counted(run.broken_count, 'check')} could not run"
    if run.failed_count:
        return "Somebody must act"
    return f"{_counted(run.warned_count, 'warning')}" if run.warned_count else "Nothing to complain about"


def _counted(count: int, one: str) -> str:
    return f"{count:,} {one}" + ("" if count == 1 else "s")


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}"


def _state(result: CheckResult) -> str:
    return result.severity or result.outcome


def _sections(results: Sequence[CheckResult]) -> Iterator[str]:
    for state in ("broken", "fail", "warn"):
        names = dict.fromkeys(each.expectation for each in results if _state(each) == state)
        if names:
            yield f'<h2>{_WORDS[state].capitalize()}</h2>\n<p class="group">{_MEANS[state]}</p>\n'
        for name in names:
            yield _article(
                state, name, [each for each in results if each.expectation == name and _state(each) == state]
            )
    for state in ("unknown", "passed"):
        listed = [each for each in results if _state(each) == state]
        if listed:
            yield f'<h2>{_WORDS[state].capitalize()}</h2>\n<p class="group">{_MEANS[state]}</p>\n{_table(listed)}'
    about = {each.expectation: each for each in results if _state(each) in ("unknown", "passed")}
    if about:
        rows = "".join(
            f"<dt>{_name(name)}</dt><dd>{_told(each.why)}<br>If it fails: {_told(_act(each))}</dd>"
            for name, each in sorted(about.items())
        )
        yield f"<details><summary>Why these are looked at, and what to do</summary><dl>{rows}</dl></details>\n"


def _article(state: str, name: str, listed: Sequence[CheckResult]) -> str:
    first = listed[0]
    fault = f"<p>{escape(first.fault)}</p>" if first.fault is not None else ""
    return (
        f'<article class="{state}"><h3>{_name(name)} <span class="soft">· {_meaning(first)}</span></h3>'
        f"{fault or _table(listed, named=False)}"
        f"<dl><dt>Why</dt><dd>{_told(first.why)}</dd><dt>What to do</dt><dd>{_told(_act(first))}</dd></dl></article>\n"
    )


def _table(listed: Sequence[CheckResult], *, named: bool = True) -> str:
    rows = "".join(
        f"<tr><td>{_label(each, named)}</td>"
        f'<td class="number word {_state(each)}">{shown(each.observed, each.unit)}</td>'
        f'<td class="number sample">{_sample(each)}</td><td class="bound">{escape(bound_of(each))}</td></tr>'
        for each in listed
    )
    head = "what" if named else "where"
    return (
        f'<table><thead><tr><th>{head}</th><th class="number">number</th><th class="number">of</th><th>expected</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _label(each: CheckResult, named: bool) -> str:
    about = "all" if each.kind == "all" else escape(each.subject)
    if not named:
        return about
    detail = "" if each.kind == "all" else f" · {about}"
    return f'{_name(each.expectation)}{detail}<br><span class="soft">{_meaning(each)}</span>'


def _meaning(each: CheckResult) -> str:
    """Return what a number says, where the number does not stand in front of it."""
    return escape(each.meaning.removeprefix("of "))


def _act(each: CheckResult) -> str:
    if each.outcome == "broken":
        return "Mend the check: its file is in `tallystick/arrivals/`, and the columns that it reads may be in a newer version."
    return each.act


def _sample(each: CheckResult) -> str:
    if each.sample_min is None:
        return ""
    return (
        f"{each.sample_count or 0:,} (needs {each.sample_min:,})"
        if each.outcome == "unknown"
        else f"{each.sample_count or 0:,}"
    )


def _name(name: str) -> str:
    return escape(name.replace("_", " "))


def _told(text: str) -> str:
    """Return a text with what stands between backticks as code."""
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(escape(text).split("`")))
