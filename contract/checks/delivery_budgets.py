"""delivery/within-batch-budget and delivery/within-partition-budget: a pop gives at most what was asked for.

Reads the answers of pops. Proves: no call gave more than `batch` messages over all its partitions (200 where none was
sent, 1 where less was), none claimed more than `partitions` of them (1 where none was sent, any number where 0 was),
and a pop of a named partition gave only that one. Cannot prove that a pop gave as much as it could.
"""

from __future__ import annotations

from contract.checks.cursors import DEFAULT_BATCH
from contract.checks.facts import Call, group_name
from contract.checks.model import Model
from contract.checks.report import Report, line_of, short
from contract.history import PopCall, PopResult
from contract.verdicts import Violation

BATCH, PARTITIONS = RULES = ("delivery/within-batch-budget", "delivery/within-partition-budget")


def check(model: Model, report: Report) -> None:
    """Files at most one violation of each rule for each pop."""
    for call in model.facts.pops:
        request, result = call.request, call.result
        if not isinstance(result, PopResult) or not result.message_ids:
            continue
        assert isinstance(request, PopCall)
        report.compared[BATCH] += 1
        most = DEFAULT_BATCH if request.batch is None else max(request.batch, 1)
        if len(result.message_ids) > most:
            report.violate(_violation(BATCH, call, request, f"at most {most} messages", f"{len(result.message_ids)}"))
        _check_partitions(report, call, request, sorted(set(result.partitions)))


def _check_partitions(report: Report, call: Call, request: PopCall, given: list[str]) -> None:
    report.compared[PARTITIONS] += 1
    most = 1 if request.partitions is None else request.partitions
    if request.partition is not None:
        if given != [request.partition]:
            expected = f"only partition {short(request.partition)}"
            report.violate(_violation(PARTITIONS, call, request, expected, ", ".join(map(short, given))))
    elif most and len(given) > most:
        report.violate(_violation(PARTITIONS, call, request, f"at most {most} partitions", f"{len(given)}"))


def _violation(rule: str, call: Call, request: PopCall, expected: str, observed: str) -> Violation:
    return Violation(
        rule,
        request.queue,
        request.partition or "",
        group_name(request.group),
        expected,
        f"{observed} came",
        (call.number,),
        line=line_of(call.returned),
        at_us=call.returned_us,
    )
