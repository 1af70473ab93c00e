"""Whether some legal execution explains a short history: depth first over the orders in which its calls can have acted.

A path is an order of acts; after each act the state machine says in which states the queue may be. What was acted,
and the state with all that is known about the times, is remembered, so that no situation is looked at twice.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from contract.exact.acts import Act, Move, Puzzle, Start, Store, Unsupported, read
from contract.exact.machine import Machine
from contract.exact.state import MICROSECONDS, State
from contract.history import History
from contract.profile import PROFILES, SIMULATED, Profile


class Finding(enum.StrEnum):
    """What a search can find."""

    EXPLAINED = "EXPLAINED"
    REJECTED = "REJECTED"
    UNDECIDED = "UNDECIDED"
    UNSUPPORTED = "UNSUPPORTED"


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found. `order`: the acts of an explanation, or of the longest prefix that could be explained.

    `why`: what could not be placed behind that prefix, which budget was spent, or what the search has no model of.
    """

    finding: Finding
    order: tuple[str, ...] = ()
    why: str = ""
    nodes: int = 0


def explain(history: History, profile: Profile | None = None, *, nodes: int = 200_000) -> Answer:
    """Searches for a legal execution of the contract that gives exactly the answers of a history.

    `profile` None takes the one that the header names; `nodes` bounds the situations looked at. Never raises for what
    a broker answered.
    """
    used = profile or PROFILES.get(history.header.profile, SIMULATED)
    try:
        puzzle = read(history, used)
    except Unsupported as error:
        return Answer(Finding.UNSUPPORTED, why=str(error))
    readings = [used.named_pop_registers] if used.named_pop_registers is not None else [True, False]
    if not puzzle.timed_groups and not any(isinstance(act, Move) for act in puzzle.acts):
        readings = readings[:1]  # it matters to nothing which groups are there
    best, spent = Answer(Finding.REJECTED), 0
    for reading in readings:
        search = _Search(puzzle, used, nodes - spent, named_registers=bool(reading))
        answer = search.run()
        spent += answer.nodes
        if answer.finding is not Finding.REJECTED:
            return answer
        if len(answer.order) >= len(best.order):
            best = answer
    return best


class _Search:
    """One search under one reading."""

    def __init__(self, puzzle: Puzzle, profile: Profile, nodes: int, *, named_registers: bool) -> None:
        self.acts = puzzle.acts
        self.machine = Machine(puzzle, profile, named_registers=named_registers)
        self.forget_us = int(max(profile.wildcard_settle_s, profile.named_settle_s) * MICROSECONDS)
        self.nodes, self.left = nodes, nodes
        self.seen: set[tuple[object, ...]] = set()
        self.path: list[int] = []
        self.best: list[int] = []
        self.due = sum(1 << index for index, act in enumerate(self.acts) if _must_act(act))
        order = sorted(range(len(self.acts)), key=lambda index: self._urgency(self.acts[index]))
        self.order = order
        self.barred = [self._later_siblings(index) for index in range(len(self.acts))]

    def run(self) -> Answer:
        """Searches to the end or until the budget is spent."""
        moves = [self._moves(self.machine.begin(), 0, -1)]
        found = not self.due
        while moves and not found:
            move = next(moves[-1], None)
            if move is None:
                moves.pop()
                del self.path[-1:]
                continue
            index, state, done, frontier = move
            if not self._is_new(state, done):
                continue
            if self.left <= 0:
                why = f"{self.nodes} situations were looked at; nodes=... allows more"
                return Answer(Finding.UNDECIDED, self._names(self.best), why, self.nodes)
            self.path.append(index)
            if len(self.path) > len(self.best):
                self.best = list(self.path)
            found = done & self.due == self.due
            moves.append(self._moves(state, done, frontier))
        spent = self.nodes - self.left
        if found:
            return Answer(Finding.EXPLAINED, self._names(self.path), nodes=spent)
        missing = [act.span.name for index, act in enumerate(self.acts) if _must_act(act) and index not in self.best]
        return Answer(Finding.REJECTED, self._names(self.best), f"not explained: {'; '.join(missing)}", spent)

    def _is_new(self, state: State, done: int) -> bool:
        key = (done, *state.key())
        if key in self.seen:
            return False
        self.seen.add(key)
        self.left -= 1
        return True

    def _moves(self, state: State, done: int, frontier: int) -> Iterator[tuple[int, State, int, int]]:
        """Every act that may come next, with the state behind it, all that acted, and the last line behind which."""
        for index in self._candidates(done, frontier):
            span = self.acts[index].span
            moved = state.later(span.from_us, span.until_us, self.forget_us)
            if moved is not None:
                for after in self.machine.step(moved, index, done):
                    yield index, after, done | 1 << index, max(frontier, span.invoked)

    def _candidates(self, done: int, frontier: int) -> Iterator[int]:
        """The acts that may be the next one."""
        waiting = [index for index in self.order if not done >> index & 1]
        first = min((self.acts[index].span.until for index in waiting if self.due >> index & 1), default=0)
        for index in waiting:
            act = self.acts[index]
            if (
                act.span.invoked <= first
                and act.span.until >= frontier
                and (act.after < 0 or done >> act.after & 1)
                and not done & self.barred[index]
            ):
                yield index

    def _urgency(self, act: Act) -> tuple[bool, int, int]:
        return (act.span.optional, act.span.until, act.span.invoked)

    def _later_siblings(self, index: int) -> int:
        """The later items of the same request and partition, behind which an item is not stored."""
        act = self.acts[index]
        if not isinstance(act, Store) or not act.in_order:
            return 0
        return sum(
            1 << other
            for other in range(index + 1, len(self.acts))
            if isinstance(sibling := self.acts[other], Store)
            and sibling.span.call == act.span.call
            and sibling.partition == act.partition
        )

    def _names(self, path: list[int]) -> tuple[str, ...]:
        return tuple(self.acts[index].span.name for index in path)


def _must_act(act: Act) -> bool:
    return not act.span.optional and not isinstance(act, Start)
