"""The report of a run: for people, for programs, for CI.

Every form begins with the same lines: where what is declared is not what is done, whether the run
came to its end, and the counts.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as Xml

from semel.check.json_values import is_object
from semel.check.profiles import CheckProfile
from semel.check.redaction import Redactor, shown_safely
from semel.check.run import PROBES, CheckVerdict, ProbeResult
from semel.errors import ConfigurationError

GRAVEST: Final = (
    *("effect.once", "contract.keys", "race.twenty", "flight.same", "hangup.after", "tenant.own"),
    *("replay.equal", "flight.other", "hangup.middle", "durable.restart", "mismatch.body"),
)
"""What costs money or tells one customer of another, the worst first; the others as they ran."""
INTERRUPTED: Final = "it was interrupted"
FORMATS: Final = ("json", "junit", "sarif", "html", "markdown")


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All results of a run."""

    origin: str
    profile: CheckProfile
    results: tuple[ProbeResult, ...]
    requests: int
    seconds: float
    facts: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    unchecked: Mapping[str, str] = field(default_factory=dict[str, str])
    """Operations that could not be checked, and why."""
    ended: str = ""
    """Why the run ended before its end."""
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """What was given as a secret."""

    def count(self, verdict: CheckVerdict) -> int:
        return Counter(each.verdict for each in self.results)[verdict]

    @property
    def broken(self) -> list[ProbeResult]:
        return [each for each in self.results if each.verdict is CheckVerdict.BROKEN]

    @property
    def worst_first(self) -> list[ProbeResult]:
        """All results: what is broken first, and of that the gravest."""
        grave = {name: place for place, name in enumerate(GRAVEST)}
        return sorted(
            self.results,
            key=lambda each: (_VERDICTS.index(each.verdict), grave.get(each.name, len(grave))),
        )

    @property
    def finished(self) -> bool:
        """Whether all that was wanted was tried, and something was shown at all."""
        shown = self.count(CheckVerdict.HOLDS) + len(self.broken)
        return not self.ended and not self.unchecked and shown > 0

    @property
    def interrupted(self) -> bool:
        return self.ended == INTERRUPTED

    @property
    def contract_gaps(self) -> list[ProbeResult]:
        """Where the API does not do what it declares, or does what it does not declare."""
        return [each for each in self.broken if each.name.startswith("contract.")]

    def headline(self) -> str:
        """The whole run in a sentence."""
        counts = [f"{self.count(each)} {each}" for each in CheckVerdict if self.count(each)]
        sums = ", ".join(counts) or "nothing was tried"
        requests = "1 request" if self.requests == 1 else f"{self.requests} requests"
        return f"{sums}; {requests} in {self.seconds:.1f} s"

    def first_lines(self) -> list[str]:
        """What is said first: the contract against the API, what is missing, the counts."""
        lines = [*self._contract(), *(f"Not checked: {why}" for why in self.unchecked.values())]
        if self.ended:
            lines.append(f"Not finished: {self.ended}")
        elif not self.unchecked and not self.finished:
            lines.append("Nothing was shown: no probe holds, and none is broken")
        return [*map(self.redactor().text, lines), self.headline()]

    def _contract(self) -> list[str]:
        if gaps := self.contract_gaps:
            return [
                f"{each.reason[:1].upper()}{each.reason[1:]} ({each.operation})" for each in gaps
            ]
        compared = [each for each in self.results if each.name.startswith("contract.")]
        if held := sum(each.verdict is CheckVerdict.HOLDS for each in compared):
            unseen = sum(each.verdict is CheckVerdict.NOT_OBSERVABLE for each in compared)
            rest = f", {unseen} could not be seen" if unseen else ""
            return [f"What is declared is enforced: {held} of its promises hold{rest}"]
        if any(each.verdict is CheckVerdict.NOT_OBSERVABLE for each in compared):
            return ["Keys are declared; whether they are enforced could not be seen"]
        return []

    def redactor(self) -> Redactor:
        evidence = [one for result in self.results for one in result.evidence]
        return Redactor(evidence, self.secrets)

    def document(self) -> dict[str, Any]:
        """The report as JSON has it."""
        shown = self.redactor()
        return {
            "headline": self.first_lines(),
            "origin": self.origin,
            "profile": self.profile.name,
            "finished": self.finished,
            "requests": self.requests,
            "seconds": round(self.seconds, 3),
            "counts": {each.value: self.count(each) for each in CheckVerdict},
            "contract_gaps": [each.name for each in self.contract_gaps],
            "unchecked": {shown.text(n): shown.text(why) for n, why in self.unchecked.items()},
            "found_out": {
                shown.text(name): {what: shown.text(said) for what, said in facts.items()}
                for name, facts in self.facts.items()
            },
            "results": [
                {
                    "probe": each.name,
                    "operation": shown.text(each.operation),
                    "title": PROBES[each.name].title,
                    "verdict": each.verdict.value,
                    "reason": shown.text(each.reason),
                    "seconds": round(each.seconds, 3),
                    "evidence": [shown.exchange(one) for one in each.evidence],
                }
                for each in self.results
            ],
        }

    def text(self, form: str) -> str:
        """The report in one of `FORMATS`."""
        if form == "html":
            from semel.check.html import html

            return html(self)
        known_format(form)
        if form == "json":
            return json.dumps(self.document(), indent=2)
        made = {"junit": _junit, "sarif": _sarif, "markdown": _markdown}
        return made[form](self)

    def badge(self) -> dict[str, object]:
        """For a badge that shows a JSON endpoint."""
        held, bad = self.count(CheckVerdict.HOLDS), len(self.broken)
        message, colour = f"{held} hold", "brightgreen"
        if bad:
            message, colour = f"{bad} broken", "red"
        elif not self.finished:
            message, colour = "not finished" if held else "not shown", "lightgrey"
        if any(each.name == "contract.keys" for each in self.contract_gaps):
            message = self.contract_gaps[0].reason.partition(":")[0]
        return {"schemaVersion": 1, "label": "idempotency", "message": message, "color": colour}


_VERDICTS: Final = (
    *(CheckVerdict.BROKEN, CheckVerdict.NOT_OBSERVABLE, CheckVerdict.HOLDS, CheckVerdict.SKIPPED),
)


def known_format(form: str) -> None:
    """A `ConfigurationError` for a report that there is not."""
    if form not in FORMATS:
        raise ConfigurationError(f"there is no report {form!r}; there are {', '.join(FORMATS)}")


# ── forms ─────────────────────────────────────────────────────────────────────────────────────────


def _junit(report: CheckReport) -> str:
    shown = report.redactor()
    passed_over = report.count(CheckVerdict.SKIPPED) + report.count(CheckVerdict.NOT_OBSERVABLE)
    suite = Xml.Element(
        "testsuite",
        name="semel check",
        tests=str(len(report.results) + (not report.finished)),
        failures=str(len(report.broken)),
        errors=str(int(not report.finished)),
        skipped=str(passed_over),
        time=f"{report.seconds:.3f}",
    )
    if not report.finished:
        case = Xml.SubElement(suite, "testcase", classname="semel check", name="finished")
        Xml.SubElement(case, "error", message=_printable("; ".join(report.first_lines())))
    for each in report.results:
        case = Xml.SubElement(
            suite,
            "testcase",
            classname=_printable(shown.text(each.operation)),
            name=each.name,
            time=f"{each.seconds:.3f}",
        )
        said = _printable(shown.text(each.reason))
        if each.verdict is CheckVerdict.BROKEN:
            failure = Xml.SubElement(case, "failure", message=said)
            failure.text = _printable(
                json.dumps([shown.exchange(one) for one in each.evidence], indent=1)
            )
        elif each.verdict is not CheckVerdict.HOLDS:
            Xml.SubElement(case, "skipped", message=f"{each.verdict}: {said}")
    told = Xml.SubElement(suite, "system-out")
    told.text = _printable("\n".join(report.first_lines()))
    return Xml.tostring(suite, encoding="unicode", xml_declaration=True)


def _printable(text: str) -> str:
    """Without the characters that XML cannot hold."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "�", text)


def _sarif(report: CheckReport) -> str:
    shown = report.redactor()
    rules = [
        {
            "id": each.name,
            "shortDescription": {"text": each.title},
            "fullDescription": {"text": each.why},
        }
        for each in PROBES.values()
    ]
    results = [
        {
            "ruleId": each.name,
            "level": "error",
            "message": {"text": shown.text(f"{each.operation}: {each.reason}")},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": report.origin},
                        "region": {"startLine": 1},
                    }
                },
            ],
            "partialFingerprints": {"probe/v1": shown.text(f"{each.operation} {each.name}")},
        }
        for each in sorted(report.broken, key=lambda each: each not in report.contract_gaps)
    ]
    tool = {"driver": {"name": "semel check", "informationUri": _DOCS, "rules": rules}}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    ends: dict[str, Any] = {"executionSuccessful": report.finished}
    if not report.finished:
        said = [{"level": "error", "message": {"text": each}} for each in report.first_lines()]
        ends["toolExecutionNotifications"] = said
    run = {
        "tool": tool,
        "invocations": [ends],
        "properties": {"headline": report.first_lines()},
        "results": results,
    }
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=2)


_DOCS: Final = "https://semel.readthedocs.io/reference/check/"


def _markdown(report: CheckReport) -> str:
    shown = report.redactor()
    *first, counts = report.first_lines()
    lines = [f"# semel check: {_cell(report.origin)}", ""]
    lines += [f"- **{_cell(each)}**" for each in first]
    lines += [f"- {counts}.", f"- Profile: {_cell(report.profile.title)}.", ""]
    lines += ["| operation | probe | verdict | reason |", "|---|---|---|---|"]
    for each in report.worst_first:
        what = _cell(shown.text(each.operation))
        lines.append(
            f"| {what} | `{each.name}` | {each.verdict} | {_cell(shown.text(each.reason))} |"
        )
    for name, facts in report.facts.items():
        lines += ["", f"## What {_cell(shown.text(name))} does", "", "| | |", "|---|---|"]
        lines += [f"| {what} | {_cell(shown.text(said))} |" for what, said in facts.items()]
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    """Text that Markdown shows as it is: no link, no image, no tag, no new row."""
    one_line = " ".join(shown_safely(text).split())
    return re.sub(r"([\\`*_{}\[\]()#!|<>&~@])", r"\\\1", one_line)


# ── known gaps ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Baseline:
    """The gaps that are known, by operation and probe, under one profile."""

    profile: str
    gaps: frozenset[tuple[str, str]]

    def regressions(self, report: CheckReport) -> list[ProbeResult]:
        """What is broken and is not known."""
        return [each for each in report.broken if (each.operation, each.name) not in self.gaps]

    def mended(self, report: CheckReport) -> list[ProbeResult]:
        """What is known as broken, and holds."""
        held = [each for each in report.results if each.verdict is CheckVerdict.HOLDS]
        return [each for each in held if (each.operation, each.name) in self.gaps]


def read_baseline(path: Path, profile: CheckProfile) -> Baseline:
    """The baseline in a file; an error if it is none, or was made under another profile."""
    try:
        document = json.loads(path.read_text("utf-8"))
        known = document["broken"]
        gaps = frozenset((str(each["operation"]), str(each["probe"])) for each in known)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigurationError(f"{path} is no baseline of `semel check`: {error}") from error
    made_for = document.get("profile") if is_object(document) else None
    if made_for != profile.name:
        raise ConfigurationError(
            f"{path} is a baseline for the profile {made_for}, and this run is for {profile.name}: "
            "what is a gap there may be none here. Write it anew with --write-baseline"
        )
    if gone := sorted({probe for _, probe in gaps} - set(PROBES)):
        raise ConfigurationError(
            f"{path} names probes that there are not: {', '.join(gone)}. Write it anew"
        )
    return Baseline(profile.name, gaps)


def write_baseline(report: CheckReport, path: Path) -> None:
    """What is broken today, to be known tomorrow."""
    gaps = [{"operation": each.operation, "probe": each.name} for each in report.broken]
    document = {"profile": report.profile.name, "broken": gaps}
    path.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
