"""cursor/seek-replays, cursor/seek-to-end-skips, cursor/seek-only-this-group: a seek moves one group's cursor.

Reads the answered seeks of groups that had popped the partition before, the runs after them, and the due messages.
- seek-replays: after a seek to the oldest message the next run starts there, at once: the lease of before is gone.
- seek-to-end-skips: after a seek to the end nothing comes that was certainly stored before it.
- seek-only-this-group: another group's cursor stays where it is. Filed where a run starts, or a message is missing,
  as that seek would have it and nothing of the group's own explains.

Cannot prove anything about a seek to a time in between, about one whose answer was lost, or about a group that had
not popped yet: its seek may be its start, or be forgotten when its first pop decides.
"""

from __future__ import annotations

from contract.checks.cursors import Observation, end_at_least, end_at_most
from contract.checks.due import Due, Missing, due_messages
from contract.checks.facts import Call
from contract.checks.group_start import seen_by_another
from contract.checks.model import Model, ReaderModel
from contract.checks.order_starts_at_cursor import where_it_starts
from contract.checks.readers import Seek
from contract.checks.report import Report, names, violation_in_run
from contract.checks.stored_order import BEYOND, STRIDE

REPLAYS, SKIPS, OTHERS = RULES = ("cursor/seek-replays", "cursor/seek-to-end-skips", "cursor/seek-only-this-group")


def check(model: Model, report: Report) -> None:
    """Files at most one violation of each rule for each run and each place where messages had to come."""
    if model.facts.history.header.capabilities.get("seek") is False:
        for rule in RULES:
            report.skip(rule, "the broker has no seek")
        return
    if not model.facts.seeks:
        return
    for reader_model in model.readers.values():
        others = [other for other in model.others(reader_model) if other.reader.seeks]
        for observation in reader_model.trace.observations:
            _check_own(report, reader_model, observation)
            _check_others(report, reader_model, others, observation)
        _count_empty(report, reader_model)
    _check_due(model, report)


def _check_own(report: Report, model: ReaderModel, observation: Observation) -> None:
    call = observation.run.call
    seek = _in_force(model, call)
    if seek is None:
        return
    if seek.to_oldest and observation.compared and not _read_since(model, seek, call):
        report.compared[REPLAYS] += 1
        if observation.skipped:
            _, observed = where_it_starts(model, observation)
            expected = f"the run starts at {observation.skipped[0].name}: the group was put back to the oldest"
            _file(report, REPLAYS, observation, seek, expected, observed)
    end = end_at_least(model.log, seek.call) if seek.to_end else None
    if end is not None and observation.start is not None and observation.start // STRIDE == end // STRIDE:
        report.compared[SKIPS] += 1
        if observation.start <= end:
            expected = f"nothing at or below {model.log.at[end].name}: the group was put behind it"
            _file(report, SKIPS, observation, seek, expected, f"{names(observation.run.messages)} came")


def _count_empty(report: Report, model: ReaderModel) -> None:
    """Empty pops behind a seek to the end: what was stored before it was there, and did not come."""
    for call in model.reader.empty:
        seek = _in_force(model, call)
        if seek is not None and seek.to_end and end_at_least(model.log, seek.call) is not None:
            report.compared[SKIPS] += 1


def _in_force(model: ReaderModel, call: Call) -> Seek | None:
    """The certain seek that was answered before a call, where no other seek may have acted since it was sent."""
    may_have_acted = [seek for seek in model.reader.seeks if seek.call.invoked < call.until]
    if not may_have_acted:
        return None
    last = max(may_have_acted, key=lambda seek: seek.call.invoked)
    if not last.certain or last.call.returned > call.invoked:
        return None
    alone = all(seek is last or seek.call.until < last.call.invoked for seek in may_have_acted)
    return last if alone else None


def _read_since(model: ReaderModel, seek: Seek, call: Call) -> bool:
    """Whether something was given to the group between the seek and a call, so that the cursor has moved on."""
    return any(
        run.call is not call and run.call.returned > seek.call.invoked and run.call.invoked < call.returned
        for run in model.reader.runs
    )


def _check_others(report: Report, model: ReaderModel, others: list[ReaderModel], observation: Observation) -> None:
    call = observation.run.call
    sought = [(other, seek) for other in others for seek in other.reader.seeks if seek.call.invoked < call.returned]
    if not sought or not observation.compared or observation.start is None:
        return
    report.compared[OTHERS] += 1
    if not observation.skipped and not observation.again:
        return
    for other, seek in sought:
        if _would_have_it(model, seek, observation):
            expected, observed = where_it_starts(model, observation)
            observed += f"; only group {other.reader.group} was sought"
            _file(report, OTHERS, observation, seek, expected, observed)
            return


def _would_have_it(model: ReaderModel, seek: Seek, observation: Observation) -> bool:
    """Whether a run starts where the seek of another group went to."""
    assert observation.start is not None
    if observation.again:
        return seek.to_oldest and observation.start % STRIDE == 1
    if not seek.to_end:
        return False
    least, most = end_at_least(model.log, seek.call), end_at_most(model.log, seek.call)
    return least is not None and most != BEYOND and least <= observation.start - 1 <= most


def _check_due(model: Model, report: Report) -> None:
    missing = Missing()
    for due in due_messages(model):
        if due.skipped:
            continue
        seek = _put_back(due)
        if seek is not None:
            report.compared[REPLAYS] += 1
            if not due.came:
                missing.add(REPLAYS, due)
        elif _hidden_by_another(model, due):
            report.compared[OTHERS] += 1
            if not due.came and seen_by_another(model, due.model, due.message):
                missing.add(OTHERS, due)
    reasons = {
        REPLAYS: "must come: the group was put back to the oldest",
        OTHERS: "must come: only another group was put behind it",
    }
    missing.file(report, reasons)


def _put_back(due: Due) -> Seek | None:
    """The seek that made the message due, where nothing was given to the group since."""
    before = [seek for seek in due.model.reader.seeks if seek.call.invoked < due.moment]
    if not before:
        return None
    last = max(before, key=lambda seek: seek.call.invoked)
    if not last.certain or not last.to_oldest or due.message.stored_by > last.call.invoked:
        return None
    asked = due.moment if due.call is None else due.call.invoked
    given = any(
        last.call.invoked < run.call.returned < asked for run in due.model.reader.runs if run.call.phase != "drain"
    )
    return None if given else last


def _hidden_by_another(model: Model, due: Due) -> bool:
    """Whether a seek of another group went behind the message, and nothing of the group's own moved its cursor."""
    if due.again or due.model.reader.seeks:
        return False
    place = due.model.log.position.get(due.message)
    return place is not None and any(
        seek.to_end and seek.call.invoked < due.moment and place <= end_at_most(other.log, seek.call) != BEYOND
        for other in model.others(due.model)
        for seek in other.reader.seeks
    )


def _file(report: Report, rule: str, observation: Observation, seek: Seek, expected: str, observed: str) -> None:
    run = observation.run
    calls = (seek.call.number, run.call.number)
    report.violate(violation_in_run(rule, run, expected, observed, calls, following=observation.following))
