"""What the exact search rejects and the fast judge passes: counted, sorted into kinds, one small example each.

    PYTHONPATH=.:tests/quality python tests/quality/exact_gap.py --write docs/exact-search.md

A kind is named by the least that must be forgotten to make the history legal: where the exact search explains a history
without its `released` flags, those flags were what was wrong with it.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from contract.exact import Finding, explain
from contract.history import (
    AckCall,
    AckResult,
    ConfigureCall,
    DoneResult,
    EffectEnd,
    End,
    Event,
    ExtendResult,
    Fault,
    History,
    Invoke,
    PhaseEnd,
    PopResult,
    PushCall,
    PushResult,
    Result,
    Return,
)
from contract.judge import judge
from exact_histories import playgrounds, plays
from exact_mutants import mutants
from exact_text import rendered

NODES = 4_000
SEED = 1
PLAYS, PLAYGROUNDS, MUTANTS = 500, 250, 8
NACKS = ("failed", "retry", "dlq")

Forget = Callable[[list[Event]], list[Event]]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of difference. `forget` takes out of a history what is wrong with this kind."""

    id: str
    forget: Forget
    reason: str


def results(change: Callable[[Return, Invoke], Return | None]) -> Forget:
    """Changes answered calls; None takes the answer away and leaves the outcome unknown."""

    def forget(events: list[Event]) -> list[Event]:
        asked = {event.call: event for event in events if isinstance(event, Invoke)}
        changed: list[Event] = []
        for event in events:
            if isinstance(event, Return) and event.result is not None:
                after = change(event, asked[event.call])
                changed.append(after or msgspec.structs.replace(event, outcome="unknown", result=None, why="forgotten"))
                if after is None:
                    changed.append(EffectEnd(event.call, event.at_us))
            else:
                changed.append(event)
        return changed

    return forget


def _field(event: Return, kind: type[Result], **changes: Callable[[tuple[object, ...]], object]) -> Return:
    if event.result is None or not isinstance(event.result, kind):
        return event
    values = {name: change(getattr(event.result, name)) for name, change in changes.items()}
    return msgspec.structs.replace(event, result=msgspec.structs.replace(event.result, **values))


def _none(values: tuple[object, ...]) -> tuple[None, ...]:
    return (None,) * len(values)


def _acks_open(event: Return, asked: Invoke, words: tuple[str, ...]) -> Return:
    """The answers of acks with these words say nothing."""
    if not isinstance(event.result, AckResult) or not isinstance(asked.request, AckCall):
        return event
    open_ = frozenset(at for at, word in enumerate(asked.request.statuses) if word in words)
    return msgspec.structs.replace(event, result=msgspec.structs.replace(event.result, unknown_items=open_))


def _without_dedup(events: list[Event]) -> list[Event]:
    """Ids are not remembered across requests, and what was answered "duplicate" is not stored."""
    return [_configured(0), _configured_answer(0), *results(_duplicate_failed)(events)]


def _configured(at_us: int) -> Invoke:
    return Invoke(0, at_us, "admin", ConfigureCall("q", {"dedupWindowSeconds": 0, "leaseTime": 60}))


def _configured_answer(at_us: int) -> Return:
    return Return(0, at_us, "ok", 200, result=DoneResult())


def _duplicate_failed(event: Return, asked: Invoke) -> Return:
    if not isinstance(event.result, PushResult):
        return event
    statuses = tuple("failed" if status == "duplicate" else status for status in event.result.statuses)
    return msgspec.structs.replace(event, result=msgspec.structs.replace(event.result, statuses=statuses))


def _killed_everywhere(events: list[Event]) -> list[Event]:
    """Between any two lines every lease, retry count and attempt may have ended."""
    return [new for event in events for new in (event, Fault(event.at_us, "kill"))]


def _is_empty(event: Return) -> bool:
    return isinstance(event.result, PopResult) and not event.result.message_ids


def _answers_lost(kind: type[Result]) -> Forget:
    return results(lambda event, _: None if isinstance(event.result, kind) else event)


KINDS = (
    Kind(
        "deliveryAttempt",
        results(lambda event, _: _field(event, PopResult, attempts=_none)),
        "Behind a pop with a lost answer, a restart, or pops that overlap, the fast judge compares no count. The "
        "search knows how often the batch can have been handed out at most.",
    ),
    Kind(
        "offset",
        results(lambda event, _: _field(event, PopResult, offsets=_none)),
        "Without a complete audit the fast judge does not know how many messages lie below one, so it compares offsets "
        "with each other only. The search builds the whole log.",
    ),
    Kind(
        "leaseReleased",
        results(lambda event, _: _field(event, AckResult, released=_none)),
        "The fast judge believes an answer that denies the release, and looks for what follows from one that claims "
        "it; nothing followed here.",
    ),
    Kind(
        "noop",
        results(lambda event, _: _field(event, AckResult, noops=_none)),
        "The fast judge reads `noop:true` as a proof that the cursor is there, and looks for what contradicts it; "
        "nothing did here.",
    ),
    Kind(
        "answer of a nack",
        results(lambda event, asked: _acks_open(event, asked, NACKS)),
        "`success` or `dlq` of a `failed`, `retry` or `dlq` item is not what the state of the reader says. The fast "
        "judge compares them only where the lease and the cursor are certain and the item stands alone.",
    ),
    Kind(
        "answer of an ack",
        results(lambda event, asked: _acks_open(event, asked, ("completed", *NACKS))),
        "The same for `completed`, and what a run or an empty pop says about an ack before it: the fast judge takes "
        "the widest reading of every ack that overlaps another or carries no lease.",
    ),
    Kind(
        "duplicate",
        _without_dedup,
        "A status `queued` for an id that is remembered, or `duplicate` for one that is not. It is for the rules of "
        "the family `dedup`.",
    ),
    Kind(
        "answer of an extension",
        _answers_lost(ExtendResult),
        "`renewed` does not count the leases that are alive. The fast judge compares it only where each lease of the "
        "call was certainly over, or certainly alive.",
    ),
    Kind(
        "empty pop",
        results(lambda event, _: None if _is_empty(event) else event),
        "A pop that was empty had something to give. The fast judge asks only where every possible lease is over and "
        "the message is above every possible cursor; the search follows each possibility by itself.",
    ),
    Kind(
        "end of a lease",
        _killed_everywhere,
        "A batch came while every explanation of the calls before it leaves a lease alive. Each single explanation is "
        "contradicted elsewhere, which the fast judge does not follow up.",
    ),
    Kind(
        "delivery",
        _answers_lost(PopResult),
        "What a pop gave cannot stand where its group is. Without a complete audit the fast judge compares only "
        "neighbours whose order is proven, and it widens the possible cursors by every ack that may have acted.",
    ),
    Kind(
        "answer of a push",
        _answers_lost(PushResult),
        "An id inside one request is stored twice, or a message has an id that no broker mints.",
    ),
)
SEVERAL = Kind("several at once", list, "More than one of these must be forgotten to make the history legal.")


def kind_of(history: History) -> Kind:
    """The least that must be forgotten to make a rejected history legal."""
    for kind in KINDS:
        forgotten = History(history.header, tuple(kind.forget(list(history.events))))
        if explain(forgotten, nodes=NODES).finding is Finding.EXPLAINED:
            return kind
    return SEVERAL


def differs(history: History) -> bool:
    """Whether the search rejects a history that the fast judge passes."""
    return explain(history, nodes=NODES).finding is Finding.REJECTED and not judge(history).failed


def smaller(history: History, kind: Kind) -> History:
    """The history with every call left out that the difference does not need; the pushes stay."""
    for call in [e.call for e in history.events if isinstance(e, Invoke) and not isinstance(e.request, PushCall)]:
        kept = tuple(event for event in history.events if getattr(event, "call", None) != call)
        shorter = History(history.header, kept)
        if differs(shorter) and kind_of(shorter) is kind:
            history = shorter
    kept = tuple(event for event in history.events if not isinstance(event, Fault | PhaseEnd | End))
    bare = History(history.header, kept)
    return bare if differs(bare) and kind_of(bare) is kind else history


@dataclass(slots=True)
class Comparison:
    """What comparing the two judges found. `examples` are the shortest histories, by kind."""

    findings: Counter[str] = field(default_factory=Counter)
    both: int = 0
    judge_alone: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    examples: dict[str, History] = field(default_factory=dict)

    def add(self, history: History) -> None:
        """Compares the two on one history."""
        finding = explain(history, nodes=NODES).finding
        failed = bool(judge(history).failed)
        self.findings[finding.value] += 1
        self.judge_alone += failed and finding is Finding.EXPLAINED
        if finding is not Finding.REJECTED:
            return
        self.both += failed
        if failed:
            return
        kind = kind_of(history)
        self.kinds[kind.id] += 1
        shortest = self.examples.get(kind.id)
        if shortest is None or len(history.events) < len(shortest.events):
            self.examples[kind.id] = history


def compare() -> Comparison:
    """Compares the two on clean and mutated histories, the same in every run."""
    comparison = Comparison()
    for history, random in itertools.chain(plays(SEED, PLAYS), playgrounds(SEED, PLAYGROUNDS)):
        comparison.add(history)
        for _, mutant in mutants(history, random, MUTANTS):
            comparison.add(mutant)
    return comparison


# The page ---------------------------------------------------------------------------------------------------------


PAGE = """# The exact search

<!-- written by tests/quality/exact_gap.py; do not edit -->

For short histories there is a second judge, `contract.exact`. It asks one question: is there a legal execution of the
contract that explains all the answers of this history?

    from contract.exact import explain
    answer = explain(history)      # EXPLAINED, REJECTED, UNDECIDED or UNSUPPORTED

Each call that acted has one moment of acting: a push one for each item, in request order within a partition; an ack one
for each (partition, lease); a pop one for what it takes, and one more where it may decide the start of its group. A
call without an answer may act at any moment until its effect ended, or never. A refused call never acts. The search
goes through the orders of these moments depth first, remembers every situation it has seen, and follows one state
machine: the log of each partition, and the cursor, lease, retry count and attempt of each group. Times are kept as
differences: a lease ends so long after its pop acted, and a moment lies before or after that end.

An EXPLAINED answer carries one such order, a REJECTED one the longest beginning that can be explained, and what cannot
follow it. UNDECIDED means that the budget of situations (`nodes`) was spent. UNSUPPORTED: more than one queue, a
deleted queue, a seek or a start at a time, options other than leases, retries and dedup, or a harness that stalled.

The search shares no code with the checks, nor with the reference broker. It reads what the contract leaves open in
either way: where a nack puts the cursor, whether a `dlq` in the middle of a batch ends the lease, what survives a kill,
whether a pop of a named partition starts its group in the whole queue. It does not see what stands outside the model of
an answer: a push or an ack with too few results.

## What the comparison says

The two judges are compared on {total:,} small histories: beginnings of plays on the simulated target, histories of a
broker that draws whatever the contract leaves open, and mutants of both.

| exact search | histories | fast judge fails |
|---|---|---|
| EXPLAINED | {explained:,} | {judge_alone:,} |
| REJECTED | {rejected:,} | {both:,} |
| UNDECIDED | {undecided:,} | not compared |

The first number on the right must be 0, and a test holds it there: the fast judge never fails a history that has an
explanation. The rest of REJECTED, {gap:,} histories, is what the fast judge misses in histories this short. A run of
the suite ends with a drain and an audit, which these histories lack; many of the differences would show there.

## What the fast judge misses

A kind is named by the least that must be forgotten to make the history legal.

| kind | histories | why it remains |
|---|---|---|
{rows}

{examples}
"""


def page(comparison: Comparison) -> str:
    """The page for docs."""
    kinds = {kind.id: kind for kind in (*KINDS, SEVERAL)}
    order = [kind for kind, _ in comparison.kinds.most_common()]
    rows = "\n".join(f"| {kind} | {comparison.kinds[kind]:,} | {kinds[kind].reason} |" for kind in order)
    examples = "\n\n".join(_example(kinds[kind], comparison.examples[kind]) for kind in order)
    found = comparison.findings
    return PAGE.format(
        total=sum(found.values()),
        explained=found["EXPLAINED"],
        rejected=found["REJECTED"],
        undecided=found["UNDECIDED"],
        judge_alone=comparison.judge_alone,
        both=comparison.both,
        gap=found["REJECTED"] - comparison.both,
        rows=rows,
        examples=examples,
    )


def _example(kind: Kind, history: History) -> str:
    short = smaller(history, kind)
    answer = explain(short, nodes=NODES)
    return f"### {kind.id}\n\n```text\n{rendered(short)}\n```\n\nThe search: {answer.why}."


def main() -> None:
    """Prints the page, or writes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", type=Path, metavar="FILE", help="the file to write")
    options = parser.parse_args()
    text = page(compare())
    if options.write is None:
        print(text)
    else:
        options.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
