"""order/offsets-dense: offsets start at 0, have no gaps, and a message keeps its own.

Reads the offsets in answers of pushes and pops, where the broker sends them (2.x). Proves: no message has two offsets,
no offset has two messages, the offsets of a run follow each other, and the stored order that a complete audit read is
0, 1, 2, ...
Cannot prove anything on a broker that sends no offsets.
"""

from __future__ import annotations

from contract.checks.facts import Message, Run
from contract.checks.model import Model
from contract.checks.report import Report, violation_in_run
from contract.history import PopResult, PushResult

RULES = ("order/offsets-dense",)


def check(model: Model, report: Report) -> None:
    """Files one violation for each offset that is not the one it must be."""
    (rule,) = RULES
    offset_of = _answered(model)
    holder: dict[tuple[str, str, int], Message] = {}
    for run in model.facts.runs:
        result = run.call.result
        assert isinstance(result, PopResult)
        for place, (at, message) in enumerate(zip(run.at, run.messages, strict=True)):
            offset = result.offsets[at]
            if offset is None:
                continue
            report.compared[rule] += 1
            wrong = _conflict(run, message, offset, offset_of, holder) or _misplaced(model, run, message, offset)
            wrong = wrong or _unlike_its_neighbour(run, result, place)
            if wrong:
                report.violate(violation_in_run(rule, run, *wrong))


def _answered(model: Model) -> dict[Message, int]:
    """The offsets that the answers of pushes named for what they stored."""
    offsets: dict[Message, int] = {}
    for message in model.facts.messages:
        if message.push is None or message.refused:
            continue
        result = message.push.result
        if isinstance(result, PushResult) and result.statuses[message.item] == "queued":
            offset = result.offsets[message.item]
            if offset is not None:
                offsets[message] = offset
    return offsets


def _unlike_its_neighbour(run: Run, result: PopResult, place: int) -> tuple[str, str] | None:
    """An offset inside a run is one higher than the one before it. `place` counts the messages of the run."""
    before = result.offsets[run.at[place - 1]] if place else None
    offset = result.offsets[run.at[place]]
    if before is None or offset == before + 1:
        return None
    names = f"{run.messages[place - 1].name} with offset {before}", run.messages[place].name
    return f"offset {before + 1} for {names[1]}, right after {names[0]}", f"it came with offset {offset}"


def _conflict(
    run: Run,
    message: Message,
    offset: int,
    offset_of: dict[Message, int],
    holder: dict[tuple[str, str, int], Message],
) -> tuple[str, str] | None:
    known = offset_of.setdefault(message, offset)
    if known != offset:
        return f"{message.name} keeps offset {known}", f"it came with offset {offset}"
    other = holder.setdefault((run.queue, run.partition, offset), message)
    if other is not message:
        return f"offset {offset} is {other.name}", f"{message.name} came with it"
    return None


def _misplaced(model: Model, run: Run, message: Message, offset: int) -> tuple[str, str] | None:
    log = model.logs[run.queue, run.partition]
    place = log.position.get(message)
    if not log.complete or place is None or place == offset + 1:
        return None
    return f"{message.name}, number {place} of the partition, has offset {place - 1}", f"it came with offset {offset}"
