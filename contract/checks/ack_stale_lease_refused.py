"""ack/stale-lease-refused: an ack under a lease that is not the live one is answered `success:false`.

Reads the answered acks whose lease was certainly dead when they were sent. Proves: none of them was answered as done.
Allowed all the same: `completed` for a message at or below the highest possible cursor (a no-op, with or without the
key), and the repetition of an ack that was sent under the same lease before.
Cannot prove: that a refused ack moved nothing; where the cursor shows up next, the order and delivery rules say so.
"""

from __future__ import annotations

from contract.checks.cursors import Ceiling
from contract.checks.dead_leases import DeadAck
from contract.checks.model import Model, ReaderModel
from contract.checks.readers import AckedItem
from contract.checks.report import Report, line_of
from contract.checks.stored_order import BEYOND, Log, comparable
from contract.verdicts import Violation

RULES = ("ack/stale-lease-refused",)


def check(model: Model, report: Report) -> None:
    """Files one violation for each item that was accepted."""
    (rule,) = RULES
    for reader_model in model.readers.values():
        for dead in reader_model.dead_acks:
            ceiling = reader_model.trace.at_ack[dead.ack.call.number, dead.ack.lease_id]
            for item in dead.ack.items:
                if item.unknown or _repeats(reader_model, dead, item):
                    continue
                if item.completes and _may_be_done(reader_model.log, item, ceiling):
                    continue
                report.compared[rule] += 1
                if item.done and not item.noop:
                    report.violate(_violation(rule, reader_model, dead, item))


def _may_be_done(log: Log, item: AckedItem, ceiling: Ceiling) -> bool:
    """Whether the message may lie at or below the cursor, or its place is not known."""
    if ceiling.position == BEYOND or ceiling.budget or not item.meant:
        return True
    places = [log.position.get(message, BEYOND) for message in item.meant]
    return any(
        place == BEYOND or not comparable(ceiling.position, place) or place <= ceiling.position for place in places
    )


def _repeats(model: ReaderModel, dead: DeadAck, item: AckedItem) -> bool:
    """Whether the same item was sent under the same lease in a call that may have acted before this one returned."""
    for ack in model.reader.acks:
        if ack.call is dead.ack.call or ack.lease_id != dead.ack.lease_id:
            continue
        if ack.call.invoked > dead.ack.call.returned:
            break
        if any(
            other.transaction_id == item.transaction_id and other.status == item.status and other.may_have_acted
            for other in ack.items
        ):
            return True
    return False


def _violation(rule: str, model: ReaderModel, dead: DeadAck, item: AckedItem) -> Violation:
    reader, call = model.reader, dead.ack.call
    name = item.meant[0].name if item.meant else item.transaction_id
    return Violation(
        rule,
        reader.queue,
        reader.partition,
        reader.group,
        f"the ack of {name} is refused: {dead.why}",
        f"it was answered success ({item.status})",
        (call.number,),
        line=line_of(call.returned),
        at_us=call.returned_us,
    )
