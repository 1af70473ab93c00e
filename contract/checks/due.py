"""Messages that a group must be given, and whether it was.

Two places where the contract leaves no way out:

- A *phase*: during a complete audit or drain, each group that popped there is given every message that was certainly
  stored before the phase began and lies above the highest possible cursor.
- An *empty answer*: a pop whose whole interval lies after every possible lease on a partition, while a message that
  was certainly stored before it lies above the highest possible cursor, is not empty.

Neither counts where the storage of the broker was away meanwhile: it may have answered without looking.

A message that a run passed over without a possible commit stays due until the drain ends (`skipped`).

A message that was given to the group before is *due again*; the others are *due first*.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from contract.checks.cursors import Ceiling
from contract.checks.facts import Call, Facts, Message, PhaseSpan, group_name
from contract.checks.model import Model, ReaderModel
from contract.checks.readers import Ack
from contract.checks.report import Report, line_of, names
from contract.checks.stored_order import BEYOND, OLDEST, Log, comparable
from contract.history import PopCall
from contract.verdicts import Violation

WILDCARD_OVERLOOKS = "wildcard-overlooks"
"""Signature of an empty answer to a wildcard pop that did not wait: the message was there, and comes to a later pop."""

BUFFERED_LOST = "buffered-lost"
"""Signature of messages that do not come and were answered `buffered`."""


@dataclass(slots=True)
class Due:
    """One message that had to come. `moment` is when it had to have come by; `call` the empty pop, None for a phase.

    `again`: the group had been given it before. `from_start`: no effect of the group's own can have moved its cursor.
    """

    model: ReaderModel
    message: Message
    came: bool
    again: bool
    from_start: bool
    moment: int
    where: str
    call: Call | None = None
    skipped: bool = False
    released: Ack | None = None


def due_messages(model: Model) -> list[Due]:
    """Every message that had to come, come or not; computed once for all rules."""
    return [due for due in _all(model) if due.released is None]


def due_if_released(model: Model) -> list[Due]:
    """Messages that had to come if an answer that a lease was released (`Due.released`) is believed."""
    return [due for due in _all(model) if due.released is not None]


def _all(model: Model) -> list[Due]:
    found: list[Due] | None = model.shared.get("due")
    if found is None:
        found = model.shared["due"] = list(_due_messages(model))
    return found


def _due_messages(model: Model) -> Iterator[Due]:
    for reader_model in model.readers.values():
        for span in model.facts.phases:
            away = model.facts.without_storage(span.begin_us, span.end_us)
            if span.name in ("drain", "audit") and span.complete and not away:
                yield from _due_in_phase(model.facts, reader_model, span)
        yield from _due_at_empty_pops(model, reader_model)


def _due_in_phase(facts: Facts, model: ReaderModel, span: PhaseSpan) -> Iterator[Due]:
    reader = model.reader
    if not _popped_in(facts, model, span):
        return
    ceiling = model.trace.at_phase[span.begin]
    given_before = {m for run in reader.runs if run.call.returned < span.begin for m in run.messages}
    given_here = {m for run in reader.runs if span.begin < run.call.returned < span.end for m in run.messages}
    messages = facts.partitions.get((reader.queue, reader.partition), [])
    listed: set[Message] = set()
    for message in _above(model.log, ceiling, messages, span.begin):
        listed.add(message)
        yield Due(
            model,
            message,
            came=message in given_here,
            again=message in given_before,
            from_start=not ceiling.moved and not given_before,
            moment=span.end,
            where=span.name,
        )
    if span.name == "drain":
        yield from (due for due in _never_given_after_a_skip(model, span) if due.message not in listed)


def _never_given_after_a_skip(model: ReaderModel, span: PhaseSpan) -> Iterator[Due]:
    for observation in model.trace.observations:
        moment = observation.run.call.returned
        for message in observation.skipped:
            given = [run.call.returned for run in model.reader.runs if message in run.messages]
            if any(other > moment for other in given):
                continue
            again = any(other < moment for other in given)
            yield Due(model, message, False, again, False, span.end, span.name, skipped=True)


def _popped_in(facts: Facts, model: ReaderModel, span: PhaseSpan) -> bool:
    """An audit that had to begin anew with another group counts for its last group only."""
    reader = model.reader
    calls = [run.call for run in reader.runs] + reader.empty
    if not any(span.begin < call.invoked < span.end for call in calls):
        return False
    if span.name != "audit":
        return True
    last = [call.request for call in facts.pops if span.begin < call.invoked < span.end][-1]
    return isinstance(last, PopCall) and group_name(last.group) == reader.group


def _above(log: Log, ceiling: Ceiling, messages: list[Message], moment: int) -> Iterator[Message]:
    """Messages certainly stored before `moment` and above the ceiling; what its budget may cover is left out."""
    if ceiling.position == BEYOND:
        return
    stored = [message for message in messages if message.stored_by < moment]
    placed = [
        message
        for message in log.order
        if message.stored_by < moment
        and comparable(ceiling.position, log.position[message])
        and log.position[message] > ceiling.position
    ]
    yield from placed[ceiling.budget :]
    if ceiling.position == OLDEST and not ceiling.budget:
        # A cursor before everything: also what no read ever showed a place for was above it.
        yield from (message for message in stored if message not in log.position)


def _due_at_empty_pops(model: Model, reader_model: ReaderModel) -> Iterator[Due]:
    reader, profile = reader_model.reader, model.profile
    for call in reader_model.reader.empty:
        assert isinstance(call.request, PopCall)
        wildcard = call.request.partition is None
        settle_s = profile.wildcard_settle_s if wildcard else profile.named_settle_s
        ceiling = reader_model.trace.at_empty[call.number]
        message = _first_above(reader_model.log, ceiling, call.invoked)
        if message is None:
            continue
        settle_us = int(settle_s * 1_000_000)
        released = None
        if not reader_model.occupancy.free_throughout(call, settle_us=settle_us):
            said = {ack.lease_id: ack for ack in reader.acks if _said_released(ack, call)}
            leases = {lease_id: ack.call.invoked for lease_id, ack in said.items() if lease_id is not None}
            if not leases or not reader_model.occupancy.free_throughout(call, settle_us=settle_us, believed=leases):
                continue
            released = next(iter(said.values()))
        given_before = any(run.call.returned < call.invoked for run in reader.runs)
        again = any(message in run.messages for run in reader.runs if run.call.returned < call.invoked)
        yield Due(
            reader_model,
            message,
            came=False,
            again=again,
            from_start=not ceiling.moved and not given_before,
            moment=call.returned,
            where="empty pop",
            call=call,
            released=released,
        )


def _said_released(ack: Ack, call: Call) -> bool:
    """Whether an answered ack said, before the pop was sent, that its lease is over."""
    return ack.call.returned < call.invoked and any(item.done and item.released for item in ack.items)


def _first_above(log: Log, ceiling: Ceiling, moment: int) -> Message | None:
    if ceiling.position == BEYOND or ceiling.budget:
        return None
    if ceiling.position == OLDEST:
        return next((message for message in log.order if message.stored_by < moment), None)
    place = ceiling.position + 1
    while (message := log.at.get(place)) is not None:
        if message.stored_by < moment:
            return message
        place += 1
    return None


class Missing:
    """Due messages that did not come, by rule, reader and place of asking: each of these is one violation."""

    def __init__(self) -> None:
        self._dues: dict[tuple[str, int, str, int, bool], list[Due]] = {}

    def add(self, rule: str, due: Due) -> None:
        """Notes one message."""
        self._dues.setdefault((rule, id(due.model), due.where, due.moment, _lost(due)), []).append(due)

    def file(self, report: Report, reasons: Mapping[str, str]) -> None:
        """Files the violations; `reasons` says for each rule why the messages had to come."""
        for (rule, *_), dues in self._dues.items():
            report.violate(missing_violation(rule, dues, reasons[rule]))


def _lost(due: Due) -> bool:
    """Whether nobody ever saw the message, and its push was answered `buffered`."""
    return due.message.spooled and due.message.message_id is None


def missing_violation(rule: str, dues: list[Due], why: str, other: Call | None = None) -> Violation:
    """The violation that some messages did not come where they had to; `other` is a call that has to do with it."""
    first = dues[0]
    reader = first.model.reader
    messages = [due.message for due in dues]
    signature = BUFFERED_LOST if all(map(_lost, dues)) else ""
    if first.call is not None:
        request = first.call.request
        assert isinstance(request, PopCall)
        if request.partition is None and not request.wait_ms:
            signature = signature or WILDCARD_OVERLOOKS
        observed = f"the pop at step {first.call.step or first.call.phase} was empty"
    else:
        observed = f"the whole {first.where} did not bring {names(messages)}"
    return Violation(
        rule,
        reader.queue,
        reader.partition,
        reader.group,
        f"{names(messages)} {why}",
        observed,
        calls=(*_pushes(messages), *(call.number for call in (other, first.call) if call is not None)),
        signature=signature,
        line=line_of(first.moment),
        at_us=first.call.returned_us if first.call else 0,
    )


def _pushes(messages: list[Message]) -> list[int]:
    return sorted({message.push.number for message in messages if message.push is not None})
