"""delivery/not-after-ack, delivery/auto-ack-once, ack/completes-prefix: what is done does not come again.

Reads the runs that start at or below what their group had certainly completed before the pop was sent. The first
message of such a run was completed by an ack that named it or by a dead letter (delivery/not-after-ack), committed
while it was delivered (delivery/auto-ack-once), or completed as part of the prefix below an acked message
(ack/completes-prefix).
Cannot prove a completion whose answer was lost, until a later run shows it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from contract.checks.cursors import Commit, Observation
from contract.checks.facts import Message
from contract.checks.model import Model
from contract.checks.order_starts_at_cursor import place_name
from contract.checks.report import Report, names, violation_in_run
from contract.checks.stored_order import fragment

AFTER_ACK, AUTO_ACK, PREFIX = RULES = ("delivery/not-after-ack", "delivery/auto-ack-once", "ack/completes-prefix")


def check(model: Model, report: Report) -> None:
    """Files one violation for each run that gives again what was done."""
    for reader_model in model.readers.values():
        certain = reader_model.trace.certain
        since = _since(certain)
        commits = _Commits(certain)
        for observation in reader_model.trace.observations:
            if observation.start is None:
                continue
            invoked = observation.run.call.invoked
            for rule, moment in since.items():
                if moment < invoked and observation.low is not None:
                    report.compared[rule] += 1
            if not observation.again:
                continue
            commit = commits.covering(observation)
            if commit is None:
                continue
            rule = _rule_of(commit, observation)
            below = place_name(reader_model.log, observation.low)
            report.violate(
                violation_in_run(
                    rule,
                    observation.run,
                    f"nothing at or below {below}, which the group has completed",
                    f"{names(observation.run.messages)} came again",
                    following=observation.following,
                )
            )


def _since(certain: list[Commit]) -> dict[str, int]:
    """From which moment on a rule has something to compare with."""
    since: dict[str, int] = {}
    for commit in certain:  # in the order of their moments
        since.setdefault(_rule_of(commit, None), commit.moment)
        if commit.prefix:
            since.setdefault(PREFIX, commit.moment)
    return since


class _Records:
    """Of commits in the order of their moments: those that reach higher than every one before, by fragment.

    The first commit that reaches a position is always one of them.
    """

    def __init__(self) -> None:
        self._commits: dict[int, list[Commit]] = {}

    def add(self, commit: Commit) -> None:
        highest = self._commits.setdefault(fragment(commit.position), [])
        if not highest or commit.position > highest[-1].position:
            highest.append(commit)

    def first(self, start: int, moment: int) -> Commit | None:
        """The first commit at or above the position `start`, where it was known before `moment`."""
        highest = self._commits.get(fragment(start), [])
        index = bisect.bisect_left(highest, start, key=lambda commit: commit.position)
        return highest[index] if index < len(highest) and highest[index].moment < moment else None


class _Commits:
    """The certain commits of a reader, asked for the one that makes the start of a run done."""

    def __init__(self, commits: Iterable[Commit]) -> None:
        self._all = _Records()
        self._naming: dict[Message, _Records] = {}
        for commit in commits:
            self._all.add(commit)
            for message in commit.named:
                self._naming.setdefault(message, _Records()).add(commit)

    def covering(self, observation: Observation) -> Commit | None:
        """One that names the first message of the run where there is one."""
        start, moment = observation.start, observation.run.call.invoked
        assert start is not None
        naming = self._naming.get(observation.run.messages[0])
        named = None if naming is None else naming.first(start, moment)
        return named or self._all.first(start, moment)


def _rule_of(commit: Commit, observation: Observation | None) -> str:
    if commit.auto_ack:
        return AUTO_ACK
    if observation is not None and observation.run.messages[0] not in commit.named:
        return PREFIX
    return AFTER_ACK
