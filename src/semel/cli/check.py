"""`semel check`: whether an API really is idempotent, found out from outside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urlsplit

import click

from semel.cli import output
from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from semel.check import CheckOptions, CheckReport, ProbeResult
    from semel.check.profiles import CheckProfile
    from semel.check.redaction import Redactor
    from semel.check.report import Baseline
    from semel.check.run import CheckedOperation

SHOWN: Final = 2
"""Exchanges that are printed of what is broken; a report has them all."""
LONGEST: Final = 60
_FORM: Final = "application/x-www-form-urlencoded"
INTERRUPTED: Final = 130
"""The exit code that shells give what Ctrl-C has ended."""
_COLOURS: Final = {"holds": "good", "broken": "bad", "not observable": "doubtful"}
_DISCOVERING: Final = (
    *("contract.*", "key.missing", "key.quoted", "effect.once", "replay.*", "mismatch.body"),
    *("tenant.own", "race.twenty", "flight.same", "error.*", "expiry.told"),
)
"""The probes that find out what a contract says."""


@click.command()
@click.argument("url")
@click.option("--method", default="POST", show_default=True, help="Of the operation at URL.")
@click.option("--data", help="Its body; @FILE reads a file.")
@click.option("--header", "headers", multiple=True, help="'Name: value', sent with every request.")
@click.option("--other-data", help="A valid body with another meaning.")
@click.option("--other-path", help="Path of another operation that takes this body.")
@click.option("--refused-data", help="A body that the API refuses with a 4xx.")
@click.option("--failing-header", multiple=True, help="'Name: value' that makes the API fail.")
@click.option("--request", "request_file", type=click.Path(path_type=Path), help="All of it: JSON.")
@click.option("--openapi", help="A file or URL: checks the operations in it that take keys.")
@click.option("--path", "path_values", multiple=True, help="name=value of a path parameter.")
@click.option(
    "--profile", "profile_name", default="ietf-07", show_default=True, help="What is expected."
)
@click.option("--required/--optional", default=None, help="Whether the operation requires a key.")
@click.option("--as", "token", envvar="SEMEL_CHECK_AS", help="A token, or a header 'Name: value'.")
@click.option("--other", "other_token", envvar="SEMEL_CHECK_OTHER", help="Of another caller.")
@click.option("--effects", help="What counts effects: http://…#$.path, 'sql:URL SELECT …', cmd:….")
@click.option("--provider", help=":PORT of a provider to record, which the API calls instead.")
@click.option("--provider-answer", help="What that provider answers; @FILE reads a file.")
@click.option("--restart", help="A command that restarts the API, and ends when it is up.")
@click.option("--settle", type=click.FloatRange(0), default=0.0, help="Seconds before each count.")
@click.option("--discover", is_flag=True, help="Find out the contract, and print it as a table.")
@click.option("--only", multiple=True, help="Only these probes; * stands for anything.")
@click.option(
    "--report", "reports", multiple=True, help="FORMAT=FILE: json, junit, sarif, html, markdown."
)
@click.option("--baseline", type=click.Path(path_type=Path), help="Known gaps: they do not fail.")
@click.option("--write-baseline", type=click.Path(path_type=Path), help="Make today's gaps known.")
@click.option("--badge", type=click.Path(path_type=Path), help="Write the JSON of a badge.")
@click.option("--i-may", "allowed", multiple=True, help="A host that may be sent requests.")
@click.option("--budget", type=click.IntRange(1), default=400, show_default=True, help="Requests.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds to wait for an answer.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be sent, and send nothing.")
@output.as_json
def check(url: str, as_json: bool, **given: Any) -> None:
    """Check whether the operation at URL is idempotent.

    Sends real requests, which take effect: to this machine, or to a host that --i-may names. An
    equal answer does not prove one effect; --effects or --provider count them. The exit code is 1
    when something is broken that is not in the baseline, and when the check did not come to its
    end; 130 when Ctrl-C ended it.
    """
    from semel.check import check as run_check
    from semel.check.ladder import planned, secrets_of
    from semel.check.redaction import Redactor
    from semel.check.safety import reminder

    options = _options(url, given)
    baseline = _files(options, given)
    if given["dry_run"]:
        return _say_plan(options, planned(options), as_json)

    if said := reminder(urlsplit(url).hostname or ""):
        output.say(said, err=True)
    secrets = secrets_of(options)

    def told(result: ProbeResult) -> None:
        if not as_json and not given["discover"]:
            shown = Redactor(result.evidence, secrets)
            _say_result(result, shown, many=len(options.operations) > 1)
        elif given["discover"]:
            output.say(f"{result.name}: done", err=True)

    report = run_check(options, told)
    for each in given["reports"]:
        _write_report(report, each)
    if given["badge"] is not None:
        _write(given["badge"], json.dumps(report.badge()) + "\n")
    _say_report(report, given["discover"], as_json)
    return _end(report, baseline, given, as_json)


def _files(options: CheckOptions, given: Mapping[str, Any]) -> Baseline | None:
    """The baseline. What cannot be read or written is told before anything is sent."""
    from semel.check.report import known_format, read_baseline

    for each in given["reports"]:
        known_format(each.partition("=")[0])
    written = [Path(each.partition("=")[2]) for each in given["reports"] if "=" in each]
    for path in (*written, given["badge"], given["write_baseline"]):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigurationError(f"{path}: there is no such folder")
    if given["baseline"] is None or options.profile is None:
        return None
    return read_baseline(given["baseline"], options.profile)


def _say_report(report: CheckReport, discovered: bool, as_json: bool) -> None:
    if as_json:
        return output.print_json(report.document())
    shown = report.redactor()
    for name, facts in report.facts.items() if discovered else ():
        rows = [(what, shown.text(said)) for what, said in facts.items()]
        output.say_table((shown.text(name), ""), rows)
    output.say("")
    *first, counts = report.first_lines()
    for line in first:
        bad = bool(report.contract_gaps) or not report.finished
        output.say(output.Coloured(line, "bad" if bad else "good"))
    return output.say(counts)


def _end(
    report: CheckReport, baseline: Baseline | None, given: Mapping[str, Any], as_json: bool
) -> None:
    from semel.check.report import write_baseline

    if report.interrupted:
        raise SystemExit(INTERRUPTED)
    if not report.finished:
        raise SystemExit(output.FAILED)
    if given["write_baseline"] is not None:
        return write_baseline(report, given["write_baseline"])
    failed = report.broken
    if baseline is not None:
        failed = baseline.regressions(report)
        if not as_json:
            output.say(f"{len(report.broken) - len(failed)} known, {len(failed)} new")
            for each in baseline.mended(report):
                output.say(f"mended: {each.name}; write the baseline anew to keep it so")
    if failed and not given["discover"]:
        raise SystemExit(output.FAILED)
    return None


def _say_result(result: ProbeResult, shown: Redactor, *, many: bool) -> None:
    word = result.verdict.value
    verdict = output.Coloured(f"{word:<14}", _COLOURS[word]) if word in _COLOURS else f"{word:<14}"
    where = f"{shown.text(result.operation)}  " if many else ""
    output.say(verdict, f"  {where}{result.name:<17} {shown.text(result.reason)}")
    for one in result.evidence[-SHOWN:] if word == "broken" else ():
        sent_keys = [
            text or "(empty)"
            for name, text in one.request.headers
            if name.lower() == "idempotency-key"
        ]
        got = shown.text(one.note)
        if one.answer is not None:
            got = f"{one.answer.status} {shown.body(one.answer.body, LONGEST)}"
        sent = f"{one.request.method} {shown.text(one.request.target)} "
        sent += shown.body(one.request.body, LONGEST)
        output.say(f"{'':<16}{sent}, key {shown.text(', '.join(sent_keys) or 'none')}: {got}")


def _say_plan(options: CheckOptions, probes: list[Any], as_json: bool) -> None:
    operations = [each.label for each in options.operations]
    if as_json:
        names = [each.name for each in probes]
        return output.print_json(
            {"operations": operations, "probes": names, "budget": options.budget}
        )
    for label in operations:
        output.say(f"{label} on {options.origin}")
    output.say_table(("PROBE", "WHAT HOLDS"), [(each.name, each.title) for each in probes])
    return output.say(f"at most {options.budget} requests; nothing was sent")


def _write_report(report: CheckReport, wanted: str) -> None:
    form, equals, name = wanted.partition("=")
    text = report.text(form)
    if equals:
        return _write(Path(name), text)
    for line in text.rstrip("\n").split("\n"):
        output.say(line)
    return None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error


# ── options ───────────────────────────────────────────────────────────────────────────────────────


def _options(url: str, given: Mapping[str, Any]) -> CheckOptions:
    from semel.check import CheckOptions

    parts = _parts(url)
    answer = given["provider_answer"]
    options = CheckOptions(
        origin=f"{parts.scheme}://{parts.netloc}",
        operations=_operations(url, given),
        profile=_profile(given),
        token=given["token"],
        other_token=given["other_token"],
        effects=given["effects"],
        provider=given["provider"],
        restart=given["restart"],
        only=given["only"] or (_DISCOVERING if given["discover"] else ()),
        allowed=given["allowed"],
        budget=given["budget"],
        timeout=given["timeout"],
        settle=given["settle"],
    )
    return options if answer is None else replace(options, provider_answer=_read(answer))


def _profile(given: Mapping[str, Any]) -> CheckProfile:
    import tomllib

    from semel.check.profiles import DISCOVERY, profile, read_profile

    name = given["profile_name"]
    if given["discover"]:
        found = DISCOVERY
    elif name.endswith(".toml"):
        try:
            found = read_profile(tomllib.loads(_read(f"@{name}").decode()))
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigurationError(f"--profile {name}: {error}") from error
    else:
        found = profile(name)
    required = given["required"]
    return found if required is None else replace(found, required=required)


def _operations(url: str, given: Mapping[str, Any]) -> list[CheckedOperation]:
    if given["openapi"] is not None:
        return _of_openapi(url, given)
    from semel.check.json_values import NO_JSON, json_of
    from semel.check.run import CheckedOperation
    from semel.check.wire import WireRequest, target_of

    document = _request_document(given)
    method = str(document.get("method", given["method"])).upper()
    body = _body(document, "body", given["data"])
    if body is None and method != "DELETE":
        raise ConfigurationError("what is sent? Give the body with --data, --request or --openapi")
    headers = [_header(each) for each in given["headers"]]
    headers += [(str(k), str(v)) for k, v in document.get("headers", {}).items()]
    if body and not any(name.lower() == "content-type" for name, _ in headers):
        form = json_of(body) is NO_JSON
        headers.append(("Content-Type", _FORM if form else "application/json"))
    target = str(document.get("path", target_of(_parts(url))))
    return [
        CheckedOperation(
            WireRequest(method, target, tuple(headers), body or b""),
            other_body=_body(document, "other_body", given["other_data"]),
            refused_body=_body(document, "refused_body", given["refused_data"]),
            failing=tuple(_header(each) for each in given["failing_header"]),
            other_target=given["other_path"] or document.get("other_path"),
            label=f"{method} {target.partition('?')[0]}",
        )
    ]


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigurationError(f"{url!r:.200} is no URL: {error}") from error
    if not parts.netloc:
        raise ConfigurationError(f"{url!r:.200} is no http or https URL: it begins with http://")
    return parts


def _of_openapi(url: str, given: Mapping[str, Any]) -> list[CheckedOperation]:
    from semel.check.openapi import keyed_operations, read_openapi

    source = given["openapi"]
    text = (
        _download(source, given)
        if source.startswith(("http://", "https://"))
        else _read(f"@{source}")
    )
    values = dict(each.split("=", 1) for each in given["path_values"] if "=" in each)
    prefix = urlsplit(url).path.rstrip("/")
    try:
        document = read_openapi(text.decode())
    except UnicodeDecodeError:
        raise ConfigurationError(f"--openapi {source}: it is no UTF-8") from None
    ready, left_out = keyed_operations(document, values, prefix)
    for label, reason in left_out.items():
        output.say(f"left out: {label}: {reason}", err=True)
    if not ready:
        raise ConfigurationError("no operation of the document takes keys and can be sent")
    headers = tuple(_header(each) for each in given["headers"])
    return [replace(each, request=each.request.plus(*headers)) for each in ready]


def _download(source: str, given: Mapping[str, Any]) -> bytes:
    from semel.check.safety import allowed_origin
    from semel.check.wire import Caller, RequestBudget, WireRequest, target_of

    origin = allowed_origin(source, given["allowed"])
    caller = Caller(origin, given["timeout"], RequestBudget(1))
    answer = caller.send(WireRequest("GET", target_of(origin)))
    if answer.status != 200:
        raise ConfigurationError(f"--openapi {source}: {answer.status}")
    return answer.body


def _request_document(given: Mapping[str, Any]) -> Mapping[str, Any]:
    from semel.check.json_values import is_object

    path = given["request_file"]
    if path is None:
        return {}
    try:
        document = json.loads(_read(f"@{path}"))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"--request {path} is no JSON: {error}") from error
    known = {"method", "path", "headers", "body", "other_body", "refused_body", "other_path"}
    if not is_object(document) or set(document) - known:
        raise ConfigurationError(f"--request {path}: an object with {', '.join(sorted(known))}")
    texts = [document[each] for each in ("method", "path", "other_path") if each in document]
    if not all(isinstance(each, str) for each in texts) or not is_object(
        document.get("headers", {})
    ):
        raise ConfigurationError(f"--request {path}: paths and method are texts, headers an object")
    return document


def _body(document: Mapping[str, Any], name: str, option: str | None) -> bytes | None:
    """The option's, else the document's: a text as it is, anything else as JSON."""
    if option is not None:
        return _read(option)
    said = document.get(name)
    if said is None:
        return None
    return said.encode() if isinstance(said, str) else json.dumps(said).encode()


def _read(text: str) -> bytes:
    """The text, or what is in the file that @ names."""
    if not text.startswith("@"):
        return text.encode()
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{text[1:]}: {error.strerror}") from error


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ConfigurationError(f"{text!r} is no header: write 'Name: value'")
    return name.strip(), value.strip()
