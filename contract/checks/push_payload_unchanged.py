"""push/payload-unchanged: a payload comes back the same JSON value.

Reads every delivery of a message whose push is known. Numbers are compared as exact decimals, the order of object
keys is ignored. Proves: no delivery changed a value. Cannot prove anything about values that nest too deep to parse,
unless the text is the same; these are not counted.
"""

from __future__ import annotations

from contract.checks.json_value import same_value
from contract.checks.model import Model
from contract.checks.report import Report
from contract.history import PopResult
from contract.verdicts import Violation

RULES = ("push/payload-unchanged",)


def check(model: Model, report: Report) -> None:
    """Files one violation for each delivery of another value."""
    (rule,) = RULES
    for run in model.facts.runs:
        result = run.call.result
        assert isinstance(result, PopResult)
        for at, message in zip(run.at, run.messages, strict=True):
            if message.push is None:
                continue
            delivered = result.payloads[at]
            same = same_value(message.payload, delivered)
            if same is None:
                continue
            report.compared[rule] += 1
            if not same:
                report.violate(
                    Violation(
                        rule,
                        run.queue,
                        run.partition,
                        run.group,
                        f"{message.name} carries {_short(message.payload)}",
                        f"it came with {_short(delivered)}",
                        calls=(message.push.number, run.call.number),
                        at_us=run.call.returned_us,
                    )
                )


def _short(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[:limit] + "..."
