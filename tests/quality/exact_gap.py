"""What the exact search rejects and the fast judge passes: counted, sorted into kinds, one small example each.

    PYTHONPATH=.:tests/quality python tests/quality/exact_gap.py --write docs/exact-search.md

A kind is named by the least that must be forgotten to make the history legal: where the exact search explains a history
without its `released` flags, those flags were what was wrong with it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import msgspec
from contract.exact import Finding, explain
from contract.history import (
    AckCall,
    AckResult,
    EffectEnd,
    Event,
    ExtendCall,
    ExtendResult,
    Fault,
    History,
    Invoke,
    PopCall,
    PopResult,
    PushCall,
    PushResult,
    Return,
)
from contract.judge import judge

from exact_histories import mutated_playgrounds, mutated_plays

NODES = 4_000
SEED = 1

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


def _field(event: Return, kind: type, **changes: Callable[[tuple[object, ...]], object]) -> Return:
    if not isinstance(event.result, kind):
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


def _without_ids(events: list[Event]) -> list[Event]:
    """Nothing is a duplicate: ids are minted, and what was answered "duplicate" is not stored."""
    changed: list[Event] = []
    for event in events:
        if isinstance(event, Invoke) and isinstance(event.request, PushCall):
            request = event.request
            unique = tuple(None if text is None else f"{event.call}:{n}" for n, text in enumerate(request.transaction_ids))
            event = msgspec.structs.replace(event, request=msgspec.structs.replace(request, transaction_ids=unique))
        elif isinstance(event, Return) and isinstance(event.result, PushResult):
            statuses = tuple("failed" if status == "duplicate" else status for status in event.result.statuses)
            event = msgspec.structs.replace(event, result=msgspec.structs.replace(event.result, statuses=statuses))
        changed.append(event)
    return changed


def _killed_everywhere(events: list[Event]) -> list[Event]:
    """Between any two lines every lease, retry count and attempt may have ended."""
    return [new for event in events for new in (event, Fault(event.at_us, "kill"))]


def _without_empty(event: Return, asked: Invoke) -> Return | None:
    return None if isinstance(event.result, PopResult) and not event.result.message_ids else event


KINDS: list[Kind] = []
KINDS += [
    Kind("deliveryAttempt", results(lambda e, _: _field(e, PopResult, attempts=_none)), ""),
    Kind("offset", results(lambda e, _: _field(e, PopResult, offsets=_none)), ""),
    Kind("released flag", results(lambda e, _: _field(e, AckResult, released=_none)), ""),
    Kind("noop flag", results(lambda e, _: _field(e, AckResult, noops=_none)), ""),
    Kind("answer of a nack", results(lambda e, i: _acks_open(e, i, ("failed", "retry", "dlq"))), ""),
    Kind("answer of a completed ack", results(lambda e, i: _acks_open(e, i, ("completed", "failed", "retry", "dlq"))), ""),
    Kind("duplicates", _without_ids, ""),
    Kind("extension answer", results(lambda e, _: None if isinstance(e.result, ExtendResult) else e), ""),
    Kind("empty pop", results(_without_empty), ""),
    Kind("lease times", _killed_everywhere, ""),
    Kind("a pop's answer", results(lambda e, _: None if isinstance(e.result, PopResult) else e), ""),
    Kind("a push's answer", results(lambda e, _: None if isinstance(e.result, PushResult) else e), ""),
]


def kind_of(history: History) -> str:
    """The least that must be forgotten to make a rejected history legal."""
    for kind in KINDS:
        forgotten = History(history.header, tuple(kind.forget(list(history.events))))
        if explain(forgotten, nodes=NODES).finding is Finding.EXPLAINED:
            return kind.id
    return "several at once"
