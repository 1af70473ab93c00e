"""ack/failed-comes-back-first and ack/mixed-batch-stops-at-lowest: what was handed back comes first.

Reads the answered `failed` and `retry` acks that certainly stopped the cursor (not dead-lettered, the retry budget
certainly not spent). Proves: the next run starts at or below the message that was handed back; no run skips it; and it
is not missing when it is due. Where the call also completed a message above, it is the rule of mixed batches: the
cursor stops at the lowest failed one, and the completed above it comes back.
Cannot prove anything where the budget may have been spent, or the id may mean another message.
"""

from __future__ import annotations

from contract.checks.cursors import Stop
from contract.checks.due import Due, Missing, due_messages
from contract.checks.model import Model
from contract.checks.order_starts_at_cursor import where_it_starts
from contract.checks.report import Report, violation_in_run

FAILED, MIXED = RULES = ("ack/failed-comes-back-first", "ack/mixed-batch-stops-at-lowest")


def check(model: Model, report: Report) -> None:
    """Files one violation for each skip of a message that was handed back, and each place where it had to come."""
    for reader_model in model.readers.values():
        stops = list(reader_model.trace.stops)
        for observation in reader_model.trace.observations:
            before = [stop for stop in stops if stop.moment < observation.run.call.invoked]
            stops = [stop for stop in stops if stop not in before]
            if not observation.compared:
                continue
            for stop in before:
                report.compared[_rule(stop)] += 1
            stopped = {stop.message: stop for stop in before}
            hit = next((stopped[message] for message in observation.skipped if message in stopped), None)
            if hit is not None:
                expected, observed = where_it_starts(reader_model, observation)
                expected = f"{hit.message.name}, which was handed back ({hit.status}), comes first"
                report.violate(
                    violation_in_run(_rule(hit), observation.run, expected, observed, following=observation.following)
                )
    _check_due(model, report)


def _check_due(model: Model, report: Report) -> None:
    missing = Missing()
    for due in due_messages(model):
        if not due.again:
            continue
        stop = next((s for s in reversed(due.model.trace.stops) if s.message is due.message), None)
        if stop is not None and due.came:
            report.compared[_rule(stop)] += 1
        if stop is None or due.came or _given_since(due, stop):
            continue
        report.compared[_rule(stop)] += 1
        missing.add(_rule(stop), due)
    missing.file(report, dict.fromkeys(RULES, "must come again: it was handed back"))


def _given_since(due: Due, stop: Stop) -> bool:
    return any(due.message in run.messages and run.call.returned > stop.moment for run in due.model.reader.runs)


def _rule(stop: Stop) -> str:
    return MIXED if stop.mixed else FAILED
