"""The report as one page: what a manager reads first, what an engineer opens below it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Final

from semel.check.redaction import Redactor
from semel.check.report import CheckReport
from semel.check.run import PROBES, CheckVerdict, ProbeResult

_STYLE: Final = """
:root { color-scheme: light dark; --bad: #b3261e; --good: #1b6e3c; --dim: #5f5f5f; --line: #8886; }
@media (prefers-color-scheme: dark) { :root { --bad: #ff8a80; --good: #7bd69b; --dim: #a8a8a8; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.lead { font-size: 1.15rem; } .dim { color: var(--dim); }
.gaps { border-left: .3rem solid var(--bad); padding: .4rem 1rem; margin: 1rem 0; }
.gaps p { margin: .2rem 0; }
.counts { display: flex; gap: 1rem; flex-wrap: wrap; padding: 0; list-style: none; }
.counts li { border: 1px solid var(--line); border-radius: .5rem; padding: .5rem 1rem; }
.counts b { display: block; font-size: 1.6rem; }
.broken { color: var(--bad); } .holds { color: var(--good); }
article { border-top: 1px solid var(--line); padding: .8rem 0; }
article h3 { margin: 0; font-size: 1.02rem; } article p { margin: .2rem 0; }
code, pre { font: 13px/1.4 ui-monospace, monospace; } pre { overflow-x: auto; padding: .6rem;
border: 1px solid var(--line); overflow-wrap: normal; } table { border-collapse: collapse; }
td { padding: .2rem 1rem .2rem 0; vertical-align: top; } summary { cursor: pointer; }
"""

_GROUPS: Final = (
    (CheckVerdict.BROKEN, "What is broken", "Each of these can hurt a client that tries again."),
    (
        CheckVerdict.NOT_OBSERVABLE,
        "What could not be seen from outside",
        "Neither good nor bad: something more is needed to tell.",
    ),
    (CheckVerdict.HOLDS, "What holds", "It was tried, and it is so."),
    (CheckVerdict.SKIPPED, "What was not tried", "The reason says what to give, if anything."),
)
_WORDS: Final = {
    CheckVerdict.NOT_OBSERVABLE: "could not be seen",
    CheckVerdict.SKIPPED: "not tried",
}
_SIGNS: Final = {
    CheckVerdict.HOLDS: "✓ ",
    CheckVerdict.BROKEN: "✗ Not true: ",
    CheckVerdict.NOT_OBSERVABLE: "? ",
    CheckVerdict.SKIPPED: "",
}
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def html(report: CheckReport) -> str:
    """A page that needs nothing else: no script, no font, no image; and none may come in."""
    shown = report.redactor()
    counts = "".join(
        f'<li class="{_css(each)}"><b>{report.count(each)}</b>'
        f"{escape(_WORDS.get(each, each.value))}</li>"
        for each in CheckVerdict
    )
    groups = "".join(_group(report, shown, *group) for group in _GROUPS)
    facts = "".join(_facts(shown, name, told) for name, told in report.facts.items())
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>semel check: {escape(report.origin)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>Is it safe to send a request to {escape(report.origin)} again?</h1>"
        f"{_first(report)}<p class='lead'>{_lead(report)}</p>"
        f"<ul class='counts'>{counts}</ul>"
        f"<p class='dim'>Against: {escape(report.profile.title)}. {report.requests} requests in "
        f"{report.seconds:.1f} s.</p>{groups}{facts}</body></html>\n"
    )


def _first(report: CheckReport) -> str:
    """The contract against the API, and what is missing: before all else."""
    lines = "".join(f"<p>{escape(each)}</p>" for each in report.first_lines()[:-1])
    bad = report.contract_gaps or not report.finished
    return f"<div class='{'gaps' if bad else 'contract'}'><b>{lines}</b></div>" if lines else ""


def _lead(report: CheckReport) -> str:
    if report.broken:
        worst, more = PROBES[report.worst_first[0].name], len(report.broken) - 1
        rest = f" {more} more {'is' if more == 1 else 'are'} broken." if more else ""
        return (
            f"<b class='broken'>No.</b> “{escape(worst.title)}” is not true here. "
            f"{escape(worst.why)}{rest}"
        )
    if not report.finished:
        return "<b>Nobody knows.</b> The check did not come to its end."
    if report.count(CheckVerdict.NOT_OBSERVABLE):
        return (
            "<b>As far as could be seen.</b> Nothing is broken, but some of it needs more to be "
            "sure, such as a count of what really happened."
        )
    return "<b class='holds'>Yes.</b> Everything that was tried holds."


def _group(
    report: CheckReport, shown: Redactor, verdict: CheckVerdict, name: str, meaning: str
) -> str:
    found = [each for each in report.worst_first if each.verdict is verdict]
    if not found:
        return ""
    articles = "".join(_article(shown, each) for each in found)
    return f"<h2>{name}</h2><p class='dim'>{meaning}</p>{articles}"


def _article(shown: Redactor, result: ProbeResult) -> str:
    known = PROBES[result.name]
    evidence = json.dumps([shown.exchange(one) for one in result.evidence], indent=1)
    proof = (
        f"<details><summary>Exchanges: {len(result.evidence)}</summary>"
        f"<pre>{escape(evidence)}</pre></details>"
        if result.evidence
        else ""
    )
    return (
        f"<article><h3 class='{_css(result.verdict)}'>{_SIGNS[result.verdict]}"
        f"{escape(known.title)}</h3><p>Found: {escape(shown.text(result.reason))}.</p>"
        f"<p class='dim'>Why it matters: {escape(known.why)} <code>{escape(result.name)}</code> "
        f"on {escape(shown.text(result.operation))}</p>{proof}</article>"
    )


def _facts(shown: Redactor, name: str, told: Mapping[str, str]) -> str:
    rows = "".join(
        f"<tr><td>{escape(what)}</td><td>{escape(shown.text(said))}</td></tr>"
        for what, said in told.items()
    )
    return f"<h2>What {escape(shown.text(name))} does</h2><table>{rows}</table>"


def _css(verdict: CheckVerdict) -> str:
    return verdict.value.replace(" ", "-")
