"""Where a group starts: group/start-position and its special cases.

Reads the first run of every reader, and the messages that a group which has completed nothing must be given. The
group starts where its first pop says: `new` at what is pushed after it, `all` at the oldest. Special cases, each with
a rule of its own:

- group/no-group-starts-at-oldest: consumers that name no group always start at the oldest message.
- group/new-partition-from-first: a partition that came to exist after the first pop is read from its first message.
- group/start-decided-once: the parameters of later pops change nothing. Filed where the start that was seen is the
  one that a later pop asked for.

Cannot prove anything about pushes that overlap the deciding pop; nor, where several pops may have been the first,
which of them decided.
"""

from __future__ import annotations

from contract.checks.cursors import Observation
from contract.checks.due import Due, Missing, due_messages
from contract.checks.facts import QUEUE_MODE, Message
from contract.checks.model import Model, ReaderModel
from contract.checks.order_starts_at_cursor import where_it_starts
from contract.checks.report import Report, violation_in_run
from contract.checks.stored_order import BEYOND, OLDEST, STRIDE, comparable

POSITION, ONCE, NEW_PARTITION, NO_GROUP = RULES = (
    "group/start-position",
    "group/start-decided-once",
    "group/new-partition-from-first",
    "group/no-group-starts-at-oldest",
)


def check(model: Model, report: Report) -> None:
    """Files at most one violation for each first run, and one for each place where messages had to come."""
    for reader_model in model.readers.values():
        for observation in reader_model.trace.observations:
            if observation.first and observation.compared:
                _check_first_run(report, reader_model, observation)
    _check_due(model, report)


def _check_first_run(report: Report, model: ReaderModel, observation: Observation) -> None:
    moment = observation.run.call.returned
    report.compared[_case(model)] += 1
    if model.trace.start.asked_later(moment):
        report.compared[ONCE] += 1
    if observation.skipped and all(message.stored_by >= moment for message in observation.skipped):
        return  # a hole in the order, not a start: order/starts-at-cursor
    if not observation.skipped and not observation.again:
        return
    assert observation.start is not None
    later = [start for start in model.trace.start.asked_later(moment) if _allows(start.low, start.high, observation)]
    rule = ONCE if later else _case(model)
    expected, observed = where_it_starts(model, observation)
    report.violate(violation_in_run(rule, observation.run, expected, observed, following=observation.following))


def _allows(low: int, high: int, observation: Observation) -> bool:
    """Whether a start would explain the run."""
    cursor = (observation.start or 0) - 1
    if not comparable(low, cursor) or not comparable(high, cursor):
        return False
    if high == OLDEST:
        return cursor % STRIDE == 0
    return low <= cursor <= high


def _case(model: ReaderModel) -> str:
    """The rule that speaks of this reader's start."""
    if model.reader.group == QUEUE_MODE:
        return NO_GROUP
    start = model.trace.start
    if start.mode == "new" and start.high == OLDEST:
        return NEW_PARTITION
    return POSITION


def _check_due(model: Model, report: Report) -> None:
    missing = Missing()
    for due in due_messages(model):
        if due.again or due.skipped or not due.from_start:
            continue
        rule = _case(due.model)
        report.compared[rule] += 1
        asked_later = due.model.trace.start.asked_later(due.moment)
        if asked_later:
            report.compared[ONCE] += 1
        if due.came or not seen_by_another(model, due.model, due.message):
            continue
        if any(_hides(start.high, due) for start in asked_later):
            rule = ONCE
        missing.add(rule, due)
    missing.file(report, dict.fromkeys(RULES, "must come: the group starts below"))


def _hides(high: int, due: Due) -> bool:
    place = due.model.log.position.get(due.message)
    return place is not None and high != OLDEST and (high == BEYOND or high >= place)


def seen_by_another(model: Model, reader_model: ReaderModel, message: Message) -> bool:
    """Somebody else was given the message, so it is stored and the loss is this group's alone."""
    return any(message in run.messages for other in model.others(reader_model) for run in other.reader.runs)
