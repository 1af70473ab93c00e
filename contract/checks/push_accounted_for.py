"""push/no-phantom, push/refused-is-not-delivered, push/stored-once: every delivered message is accounted for.

Reads every delivery. A delivered id belongs to the push that was answered with it; otherwise to one push to the same
partition that was not answered, by its transactionId, or by its value where it had none (each push once, as a
multiset). A message that no push accounts for is, by its transactionId or its value,

- one that the broker refused (push/refused-is-not-delivered),
- a second copy of one that was stored, or the same id at two places of the audit (push/stored-once),
- or neither (push/no-phantom).

Cannot prove which of several unanswered pushes of one value a message came from, nor that an unanswered push is not
stored twice where another unanswered push had the same value.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from contract.checks.facts import Message, Run
from contract.checks.json_value import canonical
from contract.checks.model import Model
from contract.checks.report import Report, short, violation_in_run

PHANTOM, REFUSED, ONCE = RULES = ("push/no-phantom", "push/refused-is-not-delivered", "push/stored-once")


@dataclass(slots=True)
class _Known:
    """The pushes of one partition that a stray message may be a copy of."""

    refused: list[Message] = field(default_factory=list)
    stored: list[Message] = field(default_factory=list)


def check(model: Model, report: Report) -> None:
    """Files one violation for each message that no push accounts for, and each that is stored twice."""
    strays: dict[Message, Run] = {}
    for run in model.facts.runs:
        report.compared[PHANTOM] += len(run.messages)
        for message in run.messages:
            if message.push is None:
                strays.setdefault(message, run)
            elif message.pushed_after > run.call.returned:
                expected = f"{message.name} after its push was sent"
                report.violate(violation_in_run(PHANTOM, run, expected, "it came before"))
    for message, run in strays.items():
        _file_stray(model, report, message, run)
    _count_refused(model, report)
    _check_audit(model, report)


def _file_stray(model: Model, report: Report, message: Message, run: Run) -> None:
    known = _known(model, message)
    refused = next((other for other in known.refused if _same(message, other)), None)
    if refused is not None:
        expected = f"{refused.name} was refused and is not delivered"
        report.violate(violation_in_run(REFUSED, run, expected, f"{message.name} came with the same value"))
        return
    stored = next((other for other in known.stored if _same(message, other)), None)
    if stored is not None:
        expected = f"{stored.name} is stored once"
        report.violate(violation_in_run(ONCE, run, expected, f"{message.name} is a copy of it under another id"))
        return
    observed = f"{message.name} came, id {message.message_id}, value {short(message.payload)}"
    report.violate(violation_in_run(PHANTOM, run, "a message that was pushed to this partition", observed))


def _known(model: Model, stray: Message) -> _Known:
    known = _Known()
    for message in model.facts.messages:
        if message.queue != stray.queue or message.partition != stray.partition or message.push is None:
            continue
        if message.refused:
            if message.denied:
                known.refused.append(message)
        elif message.message_id is not None and message.push.ok:
            known.stored.append(message)
    return known


def _same(stray: Message, other: Message) -> bool:
    """By the transactionId that was sent; by value where none was."""
    if other.sent_transaction_id is not None:
        return stray.transaction_id == other.sent_transaction_id
    value = canonical(stray.payload)
    return value is not None and value == canonical(other.payload)


def _count_refused(model: Model, report: Report) -> None:
    """A refused item is evidence where the whole partition was read afterwards."""
    for message in model.facts.messages:
        log = model.logs.get((message.queue, message.partition))
        if message.denied and log is not None and log.complete:
            report.compared[REFUSED] += 1


def _check_audit(model: Model, report: Report) -> None:
    for run_messages, run in model.audited():
        report.compared[ONCE] += len(run_messages)
        for message, count in Counter(run_messages).items():
            if count > 1:
                observed = f"the audit met it {count} times"
                report.violate(violation_in_run(ONCE, run, f"{message.name} is stored once", observed))
