"""ack/outside-batch-refused, ack/repeat-is-no-op, ack/answer-matches-effect: an answer says what happened.

Reads the answered acks.
- outside-batch-refused: under a live lease, an ack of a message above the leased batch, or of an id that was never
  pushed, is answered `success:false`.
- repeat-is-no-op: at or below the certain cursor, `completed` without a lease or under the live one is answered as
  done, and `failed`, `retry`, `dlq` under the live lease are refused.
- answer-matches-effect: `dlq:true` only where the item asked for it or failed; a `released` lease holds nobody back; a
  refused ack moves no cursor; an ack of an open message under the live lease is accepted, is no no-op, and releases
  the lease where it hands the batch back or reaches its end.
Cannot prove anything about leases that may be over, or ids that may mean several messages.
"""

from __future__ import annotations

from collections.abc import Iterable

from contract.checks.due import Due, due_if_released, due_messages, missing_violation
from contract.checks.facts import Message
from contract.checks.leases import Lease
from contract.checks.model import Model, ReaderModel
from contract.checks.readers import Ack, AckedItem
from contract.checks.report import Report, line_of, names, short
from contract.checks.stored_order import BEYOND, comparable, fragment
from contract.history import AckCall
from contract.verdicts import Violation

OUTSIDE, REPEAT, EFFECT = RULES = ("ack/outside-batch-refused", "ack/repeat-is-no-op", "ack/answer-matches-effect")


def check(model: Model, report: Report) -> None:
    """Files one violation for each item, run or empty pop that contradicts an answer."""
    for reader_model in model.readers.values():
        leases: dict[str | None, list[Lease]] = {}
        for lease in reader_model.leases:
            leases.setdefault(lease.run.lease_id, []).append(lease)
        for ack in reader_model.reader.acks:
            if not ack.call.ok:
                continue
            live = _live_lease(leases.get(ack.lease_id, ()), ack)
            for item in ack.items:
                if item.unknown:
                    continue
                _check_flags(report, reader_model, ack, item)
                if live is not None and _outside(reader_model, live, item, ack):
                    _file_outside(report, reader_model, ack, item)
                _check_repeat(report, reader_model, ack, item, live)
                if live is not None and len(ack.items) == 1 and _open(reader_model, live, item, ack):
                    _check_accepted(report, reader_model, live, ack, item)
        _check_refused_acks(report, reader_model)
    _check_refused_and_missing(model, report)
    _check_released(model, report)


def _live_lease(leases: Iterable[Lease], ack: Ack) -> Lease | None:
    """The one of the leases of its id under which the ack was certainly sent and answered.

    None where the call also acks under another lease, or none: that part may act first and release this one.
    """
    request = ack.call.request
    assert isinstance(request, AckCall)
    if len(set(request.lease_ids)) > 1:
        return None
    for lease in leases:
        if lease.run.call.returned < ack.call.invoked:
            others = [r for r in lease.releasers if r != ack.call.invoked]
            if ack.call.returned_us < lease.end_low_us and not any(r < ack.call.returned for r in others):
                return lease
    return None


def _check_flags(report: Report, model: ReaderModel, ack: Ack, item: AckedItem) -> None:
    report.compared[EFFECT] += 1
    if not item.dead_lettered or not (item.completes or item.status == "retry"):
        return
    same = [other for other in ack.items if other is not item and other.transaction_id == item.transaction_id]
    if any(other.fails or other.status == "dlq" for other in same):
        return  # at one offset the strongest word counts, and the flag speaks of the offset
    expected = f"no dlq for a {item.status} item ({_called(item)})"
    _file(report, EFFECT, model, ack, expected, "dlq:true", signature="dlq-on-sibling")


def _outside(model: ReaderModel, lease: Lease, item: AckedItem, ack: Ack) -> bool:
    """Whether the item certainly lies outside the leased batch and above the cursor."""
    if not item.meant:
        return _nothing_unanswered(model)
    last = model.log.position.get(lease.run.messages[-1])
    if last is None:
        return False
    places = [model.log.position.get(message, BEYOND) for message in item.meant]
    return all(place != BEYOND and comparable(last, place) and place > last for place in places)


def _nothing_unanswered(model: ReaderModel) -> bool:
    """An id that no push was answered with may belong to a push that was not answered."""
    return model.log.complete


def _file_outside(report: Report, model: ReaderModel, ack: Ack, item: AckedItem) -> None:
    report.compared[OUTSIDE] += 1
    if item.done:
        expected = f"the ack of {_called(item)} is refused: it is not in the leased batch"
        _file(report, OUTSIDE, model, ack, expected, f"it was answered success ({item.status})")


def _check_repeat(report: Report, model: ReaderModel, ack: Ack, item: AckedItem, lease: Lease | None) -> None:
    if len(item.meant) != 1 or (ack.lease_id is not None and lease is None):
        return
    place = model.log.position.get(item.meant[0])
    if place is None:
        return
    low = model.trace.low_during(ack.call, fragment(place))
    if low is None or place > low:
        return
    if item.completes:
        report.compared[REPEAT] += 1
        if not item.done:
            expected = f"completed {_called(item)}, at or below the cursor, is a no-op"
            _file(report, REPEAT, model, ack, expected, "it was answered success:false")
    elif lease is not None:
        report.compared[REPEAT] += 1
        if item.done:
            expected = f"{item.status} of {_called(item)} is refused: already committed"
            _file(report, REPEAT, model, ack, expected, "it was answered success")


def _open(model: ReaderModel, lease: Lease, item: AckedItem, ack: Ack) -> bool:
    """Whether the item is certainly in the leased batch and above the cursor."""
    ceiling = model.trace.at_ack[ack.call.number, ack.lease_id]
    if len(item.meant) != 1 or item.meant[0] not in lease.run.messages or ceiling.budget:
        return False
    place = model.log.position.get(item.meant[0], BEYOND)
    return place != BEYOND and comparable(ceiling.position, place) and place > ceiling.position


def _check_accepted(report: Report, model: ReaderModel, lease: Lease, ack: Ack, item: AckedItem) -> None:
    """The only item of a call, for an open message of the live batch: it is accepted, and not a no-op."""
    report.compared[EFFECT] += 1
    name = _called(item)
    if not item.done:
        expected = f"{item.status} of {name}, under the live lease, is accepted"
        _file(report, EFFECT, model, ack, expected, "it was refused")
    elif item.noop:
        _file(report, EFFECT, model, ack, f"{name} was open: {item.status} is no no-op", "noop:true")
    elif item.released is False:
        last = item.meant[0] is lease.run.messages[-1]
        if last or item.status == "retry" or item.fails:
            _file(report, EFFECT, model, ack, f"{item.status} of {name} releases the lease", "leaseReleased:false")


def _check_refused_acks(report: Report, model: ReaderModel) -> None:
    """A skip that ends exactly at a message whose ack was refused, or such a message that does not come again."""
    refused: dict[Message, Ack] = {}
    for ack in model.reader.acks:
        if ack.call.ok:
            refused.update(
                (item.meant[0], ack)
                for item in ack.items
                if not item.done and not item.unknown and len(item.meant) == 1
            )
    for observation in model.trace.observations:
        if not observation.skipped:
            continue
        denied = refused.get(observation.skipped[-1])
        if denied is not None and denied.call.invoked < observation.run.call.returned:
            expected = f"the refused ack of {observation.skipped[-1].name} moves nothing"
            observed = f"{names(observation.skipped)} skipped"
            _file(report, EFFECT, model, denied, expected, observed)


def _check_refused_and_missing(model: Model, report: Report) -> None:
    """A message that had to come again and did not, and whose last ack was refused."""
    missing: dict[tuple[int, int], list[Due]] = {}
    acks: dict[int, Ack] = {}
    for due in due_messages(model):
        if due.came or not due.again:
            continue
        last = _last_ack(due)
        if last is not None:
            missing.setdefault((id(last), due.moment), []).append(due)
            acks[id(last)] = last
    for (ack_key, _), dues in missing.items():
        report.compared[EFFECT] += 1
        report.violate(missing_violation(EFFECT, dues, "must come again: its ack was refused", acks[ack_key].call))


def _last_ack(due: Due) -> Ack | None:
    """The newest ack that named the message, where it was refused."""
    for ack in reversed(due.model.reader.acks):
        for item in ack.items:
            if due.message in item.meant:
                return ack if ack.call.ok and not item.may_have_acted else None
    return None


def _check_released(model: Model, report: Report) -> None:
    """An empty pop after an ack that said the lease was released, while the batch was not done."""
    for due in due_if_released(model):
        assert due.call is not None
        assert due.released is not None
        report.compared[EFFECT] += 1
        if not due.came:
            expected = f"{due.message.name} comes: the ack said that the lease was released"
            observed = f"the pop at step {due.call.step or due.call.phase} was empty"
            _file(report, EFFECT, due.model, due.released, expected, observed, signature="released-while-leased")


def _called(item: AckedItem) -> str:
    return item.meant[0].name if item.meant else f"the id {short(item.transaction_id)}"


def _file(
    report: Report, rule: str, model: ReaderModel, ack: Ack, expected: str, observed: str, signature: str = ""
) -> None:
    reader, call = model.reader, ack.call
    report.violate(
        Violation(
            rule,
            reader.queue,
            reader.partition,
            reader.group,
            expected,
            observed,
            (call.number,),
            signature=signature,
            line=line_of(call.returned),
            at_us=call.returned_us,
        )
    )
