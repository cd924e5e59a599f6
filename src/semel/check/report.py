"""The report of a run: for people, for programs, for CI.

Secrets are never in it: headers that carry credentials are blotted out, and so is every text that
stood in one, wherever else it appears.
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

from semel.check.profiles import CheckProfile
from semel.check.run import PROBES, CheckVerdict, ProbeResult
from semel.check.wire import Pairs, WireExchange
from semel.errors import ConfigurationError

SECRET_HEADERS: Final = re.compile(
    r"authorization|cookie|token|secret|signature|api-?key|credential|session", re.IGNORECASE
)
BLOT: Final = "[redacted]"
LONGEST: Final = 2000
"""Characters of a body that are shown."""
LEAST_SECRET: Final = 6
"""Shorter texts would blot out half the report."""
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

    def count(self, verdict: CheckVerdict) -> int:
        return Counter(each.verdict for each in self.results)[verdict]

    @property
    def broken(self) -> list[ProbeResult]:
        return [each for each in self.results if each.verdict is CheckVerdict.BROKEN]

    def headline(self) -> str:
        """The whole run in a sentence."""
        counts = [f"{self.count(each)} {each}" for each in CheckVerdict if self.count(each)]
        return f"{', '.join(counts)}; {self.requests} requests in {self.seconds:.1f} s"

    def document(self) -> dict[str, Any]:
        """The report as JSON has it."""
        shown = Redactor(self)
        return {
            "origin": self.origin,
            "profile": self.profile.name,
            "requests": self.requests,
            "seconds": round(self.seconds, 3),
            "counts": {each.value: self.count(each) for each in CheckVerdict},
            "contract": {name: dict(facts) for name, facts in self.facts.items()},
            "results": [
                {
                    "probe": each.name,
                    "operation": each.operation,
                    "title": _title(each),
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
        made = {"json": _json, "junit": _junit, "sarif": _sarif, "markdown": _markdown}.get(form)
        if made is None:
            raise ConfigurationError(f"there is no report {form!r}; there are {', '.join(FORMATS)}")
        return made(self)

    def badge(self) -> dict[str, object]:
        """For a badge that shows a JSON endpoint."""
        held, bad = self.count(CheckVerdict.HOLDS), len(self.broken)
        colour = "red" if bad else "brightgreen"
        message = f"{bad} broken" if bad else f"{held} hold"
        return {"schemaVersion": 1, "label": "idempotency", "message": message, "color": colour}


def _title(result: ProbeResult) -> str:
    known = PROBES.get(result.name)
    return result.name if known is None else known.title


def why(result: ProbeResult) -> str:
    """Why it matters."""
    known = PROBES.get(result.name)
    return "" if known is None else known.why


class Redactor:
    """Shows exchanges without what was secret in any of them."""

    def __init__(self, report: CheckReport) -> None:
        found: set[str] = set()
        for result in report.results:
            for one in result.evidence:
                found |= _secrets(one.request.headers)
                found |= _secrets(one.answer.headers if one.answer else ())
        self._secrets = sorted(found, key=len, reverse=True)

    def text(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, BLOT)
        return text

    def exchange(self, one: WireExchange) -> dict[str, Any]:
        request = {
            "method": one.request.method,
            "target": self.text(one.request.target),
            "headers": self._headers(one.request.headers),
            "body": self._body(one.request.body),
        }
        if one.answer is None:
            return {"request": request, "answer": None, "note": one.note}
        answer = {
            "status": one.answer.status,
            "headers": self._headers(one.answer.headers),
            "body": self._body(one.answer.body),
        }
        return {"request": request, "answer": answer, "note": one.note}

    def _headers(self, headers: Pairs) -> list[list[str]]:
        return [[name, BLOT if _is_secret(name) else self.text(text)] for name, text in headers]

    def _body(self, body: bytes) -> str:
        text = self.text(body.decode("utf-8", "replace"))
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(body)} bytes)"


def _is_secret(name: str) -> bool:
    return name.lower() != "idempotency-key" and SECRET_HEADERS.search(name) is not None


def _secrets(headers: Pairs) -> set[str]:
    texts = [text for name, text in headers if _is_secret(name)]
    words = {word.strip(';,"') for text in texts for word in re.split(r"[\s=]", text)}
    return {word for word in words if len(word) >= LEAST_SECRET and word.lower() != "bearer"}


# ── forms ─────────────────────────────────────────────────────────────────────────────────────────


def _json(report: CheckReport) -> str:
    return json.dumps(report.document(), indent=2)


def _junit(report: CheckReport) -> str:
    shown = Redactor(report)
    passed_over = report.count(CheckVerdict.SKIPPED) + report.count(CheckVerdict.NOT_OBSERVABLE)
    suite = Xml.Element(
        "testsuite",
        name="semel check",
        tests=str(len(report.results)),
        failures=str(len(report.broken)),
        skipped=str(passed_over),
        time=f"{report.seconds:.3f}",
    )
    for each in report.results:
        case = Xml.SubElement(
            suite, "testcase", classname=each.operation, name=each.name, time=f"{each.seconds:.3f}"
        )
        said = _printable(shown.text(each.reason))
        if each.verdict is CheckVerdict.BROKEN:
            failure = Xml.SubElement(case, "failure", message=said)
            failure.text = _printable(
                json.dumps([shown.exchange(one) for one in each.evidence], indent=1)
            )
        elif each.verdict is not CheckVerdict.HOLDS:
            Xml.SubElement(case, "skipped", message=f"{each.verdict}: {said}")
    return Xml.tostring(suite, encoding="unicode", xml_declaration=True)


def _printable(text: str) -> str:
    """Without the characters that XML cannot hold."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "�", text)


def _sarif(report: CheckReport) -> str:
    shown = Redactor(report)
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
            "message": {"text": f"{each.operation}: {shown.text(each.reason)}"},
            "locations": [
                {"physicalLocation": {"artifactLocation": {"uri": report.origin}}},
            ],
        }
        for each in report.broken
    ]
    tool = {"driver": {"name": "semel check", "informationUri": _DOCS, "rules": rules}}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    run = {"tool": tool, "results": results}
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=2)


_DOCS: Final = "https://semel.readthedocs.io/reference/check/"


def _markdown(report: CheckReport) -> str:
    shown = Redactor(report)
    lines = [f"# semel check: {report.origin}", "", f"{report.headline()}.", ""]
    lines += [
        f"Profile: {report.profile.title}.",
        "",
        "| probe | verdict | reason |",
        "|---|---|---|",
    ]
    for each in sorted(report.results, key=_worst_first):
        cells = (f"`{each.name}`", each.verdict.value, _cell(shown.text(each.reason)))
        lines.append(f"| {' | '.join(cells)} |")
    for name, facts in report.facts.items():
        lines += ["", f"## What {_cell(name)} does", "", "| | |", "|---|---|"]
        lines += [f"| {what} | {_cell(shown.text(said))} |" for what, said in facts.items()]
    return "\n".join([*lines, ""])


def _worst_first(result: ProbeResult) -> int:
    order = (CheckVerdict.BROKEN, CheckVerdict.NOT_OBSERVABLE, CheckVerdict.HOLDS)
    return order.index(result.verdict) if result.verdict in order else len(order)


def _cell(text: str) -> str:
    safe = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return " ".join(safe.split())


# ── known gaps ────────────────────────────────────────────────────────────────────────────────────


def regressions(report: CheckReport, baseline: Path) -> list[ProbeResult]:
    """What is broken and is not in the baseline file."""
    try:
        known = json.loads(baseline.read_text("utf-8"))["broken"]
        gaps = {(str(each["operation"]), str(each["probe"])) for each in known}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(f"{baseline} is no baseline of `semel check`: {error}") from error
    return [each for each in report.broken if (each.operation, each.name) not in gaps]


def write_baseline(report: CheckReport, path: Path) -> None:
    """What is broken today, to be known tomorrow."""
    gaps = [{"operation": each.operation, "probe": each.name} for each in report.broken]
    path.write_text(json.dumps({"broken": gaps}, indent=2) + "\n", "utf-8")
