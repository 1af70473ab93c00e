"""The fast judge against the exact search: it never fails a history that has an explanation.

A disagreement is printed as a few lines of text, with the order of acts that explains it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import Random

import pytest

from contract.exact import Finding, explain
from contract.history import History
from contract.judge import judge
from exact_histories import playgrounds, plays
from exact_mutants import mutants, mutation_names
from exact_playground import Playground
from exact_text import rendered
from twelve import LEGAL, TWELVE, Kind

NODES = 1_500
SEED = 20_26

Source = Callable[[int, int], Iterator[tuple[History, Random]]]


def accused(history: History) -> str:
    """What the fast judge says against a history, as text; empty where it passes."""
    judgement = judge(history)
    assert not judgement.errors, judgement.errors[0].reason
    said = [f"{v.rule}: {v.expected}; {v.observed}" for verdict in judgement.rules for v in verdict.violations]
    return "\n".join([rendered(history), *said]) if said else ""


def assert_never_accused(histories: Iterable[tuple[str, History]], *, explained: int) -> None:
    """`explained`: at least so many must have an explanation, or the comparison is worth nothing."""
    count = 0
    for name, history in histories:
        answer = explain(history, nodes=NODES)
        if answer.finding is Finding.EXPLAINED:
            count += 1
            assert not accused(history), f"{name}\n{accused(history)}\nexplained by {'; '.join(answer.order)}"
    assert count >= explained


@pytest.mark.parametrize(("source", "count"), [(plays, 250), (playgrounds, 400)], ids=["plays", "playgrounds"])
def test_a_legal_history_is_explained_and_passed(source: Source, count: int) -> None:
    undecided = 0
    for history, _ in source(SEED, count):
        answer = explain(history, nodes=NODES)
        assert answer.finding in (Finding.EXPLAINED, Finding.UNDECIDED), f"{answer.why}\n{rendered(history)}"
        assert not accused(history), accused(history)
        undecided += answer.finding is Finding.UNDECIDED
    assert undecided <= count // 10


@pytest.mark.parametrize(
    ("source", "count", "each", "explained"),
    [(plays, 300, 10, 1500), (playgrounds, 80, 8, 300)],
    ids=["plays", "playgrounds"],
)
def test_a_mutant_with_an_explanation_is_passed(source: Source, count: int, each: int, explained: int) -> None:
    drawn = (mutant for history, random in source(SEED, count) for mutant in mutants(history, random, each))
    assert_never_accused(drawn, explained=explained)


def test_every_mutation_is_drawn() -> None:
    names = {name for history, random in plays(SEED, 150) for name, _ in mutants(history, random, 20)}
    drawn = {part for name in names for part in name.split(" + ")}
    assert {name.replace("_", " ") for name in mutation_names()} <= drawn


@pytest.mark.parametrize("kind", LEGAL, ids=lambda kind: kind.id)
def test_the_legal_kinds_are_explained(kind: Kind) -> None:
    for number in range(30):
        answer = explain(kind.draw(Random(f"exact {kind.id} {number}")).history(), nodes=NODES)
        assert answer.finding in (Finding.EXPLAINED, Finding.UNDECIDED), answer.why


@pytest.mark.parametrize("kind", TWELVE, ids=lambda kind: kind.id)
def test_the_twelve_are_rejected(kind: Kind) -> None:
    for number in range(30):
        answer = explain(kind.draw(Random(f"exact {kind.id} {number}")).history(), nodes=NODES)
        assert answer.finding in (Finding.REJECTED, Finding.UNDECIDED), answer.order


def test_a_seed_gives_the_same_playground() -> None:
    assert Playground(Random(1)).write(6) == Playground(Random(1)).write(6)
