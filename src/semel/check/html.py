"""The report as one page: what a manager reads first, what an engineer opens below it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Final

from semel.check.report import CheckReport, Redactor, why
from semel.check.run import PROBES, CheckVerdict, ProbeResult

_STYLE: Final = """
:root { color-scheme: light dark; --bad: #b3261e; --good: #1b6e3c; --dim: #6b6b6b; --line: #8884; }
@media (prefers-color-scheme: dark) { :root { --bad: #ff8a80; --good: #7bd69b; --dim: #a8a8a8; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.lead { font-size: 1.15rem; } .dim { color: var(--dim); }
.counts { display: flex; gap: 1rem; flex-wrap: wrap; padding: 0; list-style: none; }
.counts li { border: 1px solid var(--line); border-radius: .5rem; padding: .5rem 1rem; }
.counts b { display: block; font-size: 1.6rem; }
.broken { color: var(--bad); } .holds { color: var(--good); }
article { border-top: 1px solid var(--line); padding: .8rem 0; }
article h3 { margin: 0; font-size: 1.02rem; } article p { margin: .2rem 0; }
code, pre { font: 13px/1.4 ui-monospace, monospace; } pre { overflow-x: auto; padding: .6rem;
border: 1px solid var(--line); } table { border-collapse: collapse; }
td { padding: .2rem 1rem .2rem 0; vertical-align: top; } summary { cursor: pointer; }
"""

_GROUPS: Final = (
    (CheckVerdict.BROKEN, "What is broken"),
    (CheckVerdict.NOT_OBSERVABLE, "What could not be seen from outside"),
    (CheckVerdict.HOLDS, "What holds"),
    (CheckVerdict.SKIPPED, "What was not tried"),
)


def html(report: CheckReport) -> str:
    """A page that needs nothing else: no script, no font, no image."""
    shown = Redactor(report)
    counts = "".join(
        f'<li class="{_css(each)}"><b>{report.count(each)}</b>{escape(each.value)}</li>'
        for each in CheckVerdict
    )
    groups = "".join(_group(report, shown, verdict, title) for verdict, title in _GROUPS)
    facts = "".join(_facts(shown, name, told) for name, told in report.facts.items())
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>semel check: {escape(report.origin)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>Is {escape(report.origin)} idempotent?</h1><p class='lead'>{_lead(report)}</p>"
        f"<ul class='counts'>{counts}</ul>"
        f"<p class='dim'>Against: {escape(report.profile.title)}. {report.requests} requests in "
        f"{report.seconds:.1f} s.</p>{groups}{facts}</body></html>\n"
    )


def _lead(report: CheckReport) -> str:
    if report.broken:
        worst = escape(_name(report.broken[0]))
        more = len(report.broken) - 1
        rest = f", and {more} more" if more else ""
        return f"<b class='broken'>No.</b> A retry can go wrong: {worst}{rest}."
    if report.count(CheckVerdict.NOT_OBSERVABLE):
        return "<b>As far as could be seen.</b> Some of it needs a count of effects to be sure."
    return "<b class='holds'>Yes.</b> Everything that was tried holds."


def _name(result: ProbeResult) -> str:
    known = PROBES.get(result.name)
    return f"“{result.name if known is None else known.title}” is not true here"


def _group(report: CheckReport, shown: Redactor, verdict: CheckVerdict, title: str) -> str:
    found = [each for each in report.results if each.verdict is verdict]
    if not found:
        return ""
    return f"<h2>{title}</h2>" + "".join(_article(shown, each) for each in found)


def _article(shown: Redactor, result: ProbeResult) -> str:
    known = PROBES.get(result.name)
    title = result.name if known is None else known.title
    evidence = json.dumps([shown.exchange(one) for one in result.evidence], indent=1)
    proof = (
        f"<details><summary>Exchanges: {len(result.evidence)}</summary>"
        f"<pre>{escape(evidence)}</pre></details>"
        if result.evidence
        else ""
    )
    return (
        f"<article><h3 class='{_css(result.verdict)}'>{escape(title)}</h3>"
        f"<p>{escape(shown.text(result.reason))}</p><p class='dim'>{escape(why(result))} "
        f"<code>{escape(result.name)}</code> on {escape(result.operation)}</p>{proof}</article>"
    )


def _facts(shown: Redactor, name: str, told: Mapping[str, str]) -> str:
    rows = "".join(
        f"<tr><td>{escape(what)}</td><td>{escape(shown.text(said))}</td></tr>"
        for what, said in told.items()
    )
    return f"<h2>What {escape(name)} does</h2><table>{rows}</table>"


def _css(verdict: CheckVerdict) -> str:
    return verdict.value.replace(" ", "-")
