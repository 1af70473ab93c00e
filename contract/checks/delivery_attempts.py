"""delivery/attempt-counter: how often a group was handed a batch.

Reads `deliveryAttempt`, where the broker sends it (2.x). It is 1 at first, and one higher each time the group is
handed a batch that begins at the same message, or inside the batch before (a partial ack); a start elsewhere makes it
1 again. With autoAck it is always 1.
Not compared: runs that overlap another pop of the group, that follow a pop with a lost answer which may have taken the
partition, a restart of the broker (counters may survive it or not), a seek, or an autoAck run inside an earlier batch.
"""

from __future__ import annotations

from contract.checks.facts import NEVER, Run
from contract.checks.model import Model, ReaderModel
from contract.checks.report import Report, violation_in_run
from contract.history import PopCall, PopResult

RULES = ("delivery/attempt-counter",)


def check(model: Model, report: Report) -> None:
    """Files one violation for each run with another count."""
    (rule,) = RULES
    restarts = model.facts.restarts
    for reader_model in model.readers.values():
        previous: Run | None = None
        previous_alone = True
        for run, alone in zip(reader_model.reader.runs, _alone(reader_model.reader.runs), strict=True):
            seen = _attempts(run)
            if alone and previous_alone and None not in seen:
                wanted = _wanted(reader_model, previous, run, restarts)
                if wanted:
                    report.compared[rule] += 1
                    if seen != wanted:
                        expected = " or ".join(sorted(map(str, wanted)))
                        observed = ", ".join(sorted(map(str, seen)))
                        report.violate(violation_in_run(rule, run, f"attempt {expected}", f"attempt {observed}"))
            previous, previous_alone = run, alone


def _alone(runs: list[Run]) -> list[bool]:
    """For each run, in the order of returns: whether no other run was under way at the same time."""
    alone = [True] * len(runs)
    earliest = NEVER
    for index in range(len(runs) - 1, -1, -1):
        call = runs[index].call
        before = runs[index - 1].call.returned if index else -1
        alone[index] = before < call.invoked and earliest > call.returned
        earliest = min(earliest, call.invoked)
    return alone


def _attempts(run: Run) -> set[int | None]:
    result = run.call.result
    assert isinstance(result, PopResult)
    return {result.attempts[at] for at in run.at}


def _wanted(model: ReaderModel, previous: Run | None, run: Run, restarts: list[int]) -> set[int | None] | None:
    """The one legal count as a set, or None where the history leaves more than one."""
    if run.auto_ack:
        return {1}
    if previous is None:
        return None if _unseen_between(model, -1, run) else {1}
    before = previous.call
    if (
        previous.auto_ack
        or _unseen_between(model, before.invoked, run)
        or any(before.invoked < moment < run.call.returned for moment in restarts)
        or any(
            seek.call.invoked < run.call.returned and seek.call.until > before.invoked for seek in model.reader.seeks
        )
    ):
        return None
    count = _attempts(previous)
    if len(count) != 1 or None in count:
        return None
    places = [model.log.position.get(message) for message in (run.messages[0], *previous.messages)]
    if None in places:
        return None
    start, *batch = [place for place in places if place is not None]
    last = count.pop() or 0
    return {last + 1} if batch[0] <= start <= batch[-1] else {1}


def _unseen_between(model: ReaderModel, moment: int, run: Run) -> bool:
    for call in model.reader.unseen:
        assert isinstance(call.request, PopCall)
        if call.invoked < run.call.returned and call.until > moment:
            return True
    return False
