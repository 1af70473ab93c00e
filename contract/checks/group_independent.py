"""group/independent-cursor and group/independent-lease: groups share the stored messages and nothing else.

Reads runs and due messages of a group while another group acked or leased in the same partition.
A run that starts where no own cursor can be, but exactly behind what another group may have acked, or a message that
had to come and that another group may have acked by then: that group's ack moved this cursor (independent-cursor).
A pop that had to be served and was empty while another group's lease may have been alive: that lease held it back
(independent-lease).
Cannot prove, from one history, that it was not the start of the group, or a loss; the smaller schedule tells.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from contract.checks.cursors import Observation
from contract.checks.due import Due, Missing, due_messages
from contract.checks.facts import Call, Message
from contract.checks.group_start import seen_by_another
from contract.checks.leases import Lease
from contract.checks.model import Model, ReaderModel
from contract.checks.order_starts_at_cursor import where_it_starts
from contract.checks.report import Report, violation_in_run
from contract.checks.stored_order import BEYOND, OLDEST

CURSOR, LEASE = RULES = ("group/independent-cursor", "group/independent-lease")


def check(model: Model, report: Report) -> None:
    """Files at most one violation of each rule for each run and each place where messages had to come."""
    for reader_model in model.readers.values():
        others = model.others(reader_model)
        held = [_Held(other.leases) for other in others]
        for observation in reader_model.trace.observations:
            _check_run(report, reader_model, others, held, observation)
    missing = Missing()
    acked = {id(reader_model): _acked(reader_model) for reader_model in model.readers.values()}
    for due in due_messages(model):
        for rule in _suspects(model, report, due, acked):
            missing.add(rule, due)
    reasons = {
        CURSOR: "must come: only another group acked it",
        LEASE: "must come: only another group holds a lease",
    }
    missing.file(report, reasons)


def _check_run(
    report: Report, model: ReaderModel, others: list[ReaderModel], held: list[_Held], observation: Observation
) -> None:
    call = observation.run.call
    if any(leases.during(call) for leases in held):
        report.compared[LEASE] += 1
    if observation.start is None or not observation.compared:
        return
    firsts = [other.trace.commits[0] for other in others if other.trace.commits]
    if any(effect.call.invoked < call.returned for effect in firsts):
        report.compared[CURSOR] += 1
    if not observation.skipped and not observation.again:
        return
    culprit = _whose_ack(others, observation)
    if culprit is not None:
        expected, observed = where_it_starts(model, observation)
        observed += f"; group {culprit.reader.group} had acked up to there"
        report.violate(violation_in_run(CURSOR, observation.run, expected, observed, following=observation.following))


def _whose_ack(others: list[ReaderModel], observation: Observation) -> ReaderModel | None:
    """Another group that may have acked exactly up to the message before this run."""
    assert observation.start is not None
    for other in others:
        for effect in other.trace.commits:
            if (
                effect.position != OLDEST
                and effect.position == observation.start - 1
                and effect.call.invoked < observation.run.call.returned
            ):
                return other
    return None


def _suspects(model: Model, report: Report, due: Due, acked_by: dict[int, _Acked]) -> list[str]:
    """Counts the evidence of one due message; the rules that its absence violates."""
    if due.skipped:
        return []
    others = model.others(due.model)
    leased = due.call is not None and any(_may_hold_lease(other, due.call) for other in others)
    acked = not due.again and any(acked_by[id(other)].reached(due.message, due.moment) for other in others)
    if acked:
        report.compared[CURSOR] += 1
    if leased:
        report.compared[LEASE] += 1
    if due.came:
        return []
    suspects = [LEASE] if leased else []
    if acked and seen_by_another(model, due.model, due.message):
        suspects.append(CURSOR)
    return suspects


def _may_hold_lease(other: ReaderModel, call: Call) -> bool:
    return any(
        lease.run.call.invoked < call.returned and not lease.certainly_over(call.invoked, call.invoked_us)
        for lease in other.leases
    )


class _Held:
    """The leases of a group that were certainly alive, asked for calls in the order of their returns."""

    def __init__(self, leases: list[Lease]) -> None:
        self._coming = iter(leases)
        self._next = next(self._coming, None)
        self._alive: list[Lease] = []

    def during(self, call: Call) -> bool:
        """Whether one was taken before the call and certainly alive until its return."""
        while self._next is not None and self._next.run.call.returned < call.returned:
            self._alive.append(self._next)
            self._next = next(self._coming, None)
        self._alive = [lease for lease in self._alive if lease.certainly_alive(call.returned, call.returned_us)]
        return any(lease.run.call.returned < call.invoked for lease in self._alive)


@dataclass(slots=True)
class _Acked:
    """How far a group may have acked: from the invocation `moments[i]` on, up to the position `highest[i]`."""

    model: ReaderModel
    moments: list[int]
    highest: list[int]

    def reached(self, message: Message, moment: int) -> bool:
        """Whether the group may have acked the message, or something above it, by `moment`."""
        count = bisect.bisect_left(self.moments, moment)
        if not count:
            return False
        place = self.model.log.position.get(message)
        return place is None or self.highest[count - 1] >= place


def _acked(model: ReaderModel) -> _Acked:
    found = _Acked(model, [], [])
    for effect in model.trace.commits:  # in the order of their invocations
        if effect.position not in (OLDEST, BEYOND):
            found.moments.append(effect.call.invoked)
            found.highest.append(max(effect.position, found.highest[-1] if found.highest else OLDEST))
    return found
