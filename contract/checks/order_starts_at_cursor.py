"""order/starts-at-cursor: a run starts right after the cursor of its group.

Reads the cursor trace of every reader: the lowest and the highest cursor that some legal execution may have had when
the pop acted. Proves: no run skipped a message that the group may not have completed, and none began below a cursor
that an earlier run had shown. First runs of a group are judged by the group rules, except where what was skipped was
only being pushed: then the start is not to blame.
Cannot prove anything between the two bounds: a lost answer of an ack widens them until a later run narrows them.
"""

from __future__ import annotations

from contract.checks.cursors import Observation
from contract.checks.model import Model, ReaderModel
from contract.checks.report import Report, names, violation_in_run
from contract.checks.stored_order import Log

RULES = ("order/starts-at-cursor",)


def check(model: Model, report: Report) -> None:
    """Files one violation for each run that starts elsewhere."""
    (rule,) = RULES
    for reader_model in model.readers.values():
        for observation in reader_model.trace.observations:
            if not observation.compared or (observation.first and not _only_being_pushed(observation)):
                continue
            report.compared[rule] += 1
            if observation.skipped or observation.again:
                expected, observed = where_it_starts(reader_model, observation)
                report.violate(
                    violation_in_run(rule, observation.run, expected, observed, following=observation.following)
                )


def _only_being_pushed(observation: Observation) -> bool:
    """Whether none of what was skipped was certainly stored when the run was given."""
    moment = observation.run.call.returned
    return bool(observation.skipped) and all(message.stored_by >= moment for message in observation.skipped)


def where_it_starts(model: ReaderModel, observation: Observation) -> tuple[str, str]:
    """Expected and observed, in words."""
    came = observation.run.messages[0].name
    if observation.skipped:
        missed = names(observation.skipped)
        done = "has completed nothing" if not observation.ceiling.moved else f"has not completed {missed}"
        expected = f"the run starts at {observation.skipped[0].name} (the group {done})"
        return expected, f"it starts at {came}; {missed} skipped"
    place = "its start" if observation.first else "its cursor"
    below = place_name(model.log, observation.low)
    return f"nothing at or below {below}, {place}", f"{names(observation.run.messages)} came"


def place_name(log: Log, place: int | None) -> str:
    """The message at a place, in words."""
    message = log.at.get(place) if place is not None else None
    return message.name if message is not None else "the start"
