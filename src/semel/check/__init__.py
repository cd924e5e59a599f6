"""`semel check`: learns from outside whether an API really is idempotent.

A ladder of probes sends real requests to one operation of the API and looks at what comes back:

wire         requests and answers over HTTP: repeated headers, hang-ups, twenty at once
noise        which parts of an answer differ anyway, learnt from different keys
oracles      what counts effects: a URL, a query, a command, a recording provider
effects      how often requests took effect, and whether the oracle can be believed
profiles     what a contract promises, as data: profiles/*.toml
run          one run: what the probes share
probes_*     the ladder, by what the probes are about
contract     what the API declares, against what it does
openapi      the operations of an OpenAPI document that take keys, with bodies for them
safety       where requests may be sent
ladder       runs the probes and makes the report
report       the report as JSON, JUnit, SARIF, Markdown and HTML; baseline and badge
json_values  reads JSON, and says what a value is
redaction    exchanges as they may be shown: without secrets, without hostile text
html         the report as one page

Every probe has one verdict. An equal answer does not prove one effect: without an oracle, a probe
whose truth lies in effects is "not observable", never "holds".
"""

from semel.check.ladder import CheckOptions, check, check_url
from semel.check.report import CheckReport
from semel.check.run import CheckVerdict, ProbeResult

__all__ = ["CheckOptions", "CheckReport", "CheckVerdict", "ProbeResult", "check", "check_url"]
