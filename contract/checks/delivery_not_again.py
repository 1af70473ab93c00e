"""delivery/not-after-ack, delivery/auto-ack-once, ack/completes-prefix: what is done does not come again.

Reads the runs that start at or below what their group had certainly completed before the pop was sent. The first
message of such a run was completed by an ack that named it or by a dead letter (delivery/not-after-ack), committed
while it was delivered (delivery/auto-ack-once), or completed as part of the prefix below an acked message
(ack/completes-prefix).
Cannot prove a completion whose answer was lost, until a later run shows it.
"""

from __future__ import annotations

from contract.checks.cursors import Commit, Observation
from contract.checks.model import Model
from contract.checks.order_starts_at_cursor import place_name
from contract.checks.report import Report, names, violation_in_run
from contract.checks.stored_order import comparable

AFTER_ACK, AUTO_ACK, PREFIX = RULES = ("delivery/not-after-ack", "delivery/auto-ack-once", "ack/completes-prefix")


def check(model: Model, report: Report) -> None:
    """Files one violation for each run that gives again what was done."""
    for reader_model in model.readers.values():
        certain = reader_model.trace.certain
        since = _since(certain)
        for observation in reader_model.trace.observations:
            if observation.start is None:
                continue
            invoked = observation.run.call.invoked
            for rule, moment in since.items():
                if moment < invoked:
                    report.compared[rule] += 1
            if not observation.again:
                continue
            commit = _covering([c for c in certain if c.moment < invoked], observation)
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


def _covering(commits: list[Commit], observation: Observation) -> Commit | None:
    """The commit that makes the start of the run done: one that names it where there is one."""
    start = observation.start
    assert start is not None
    covering = [c for c in commits if comparable(c.position, start) and c.position >= start]
    first = observation.run.messages[0]
    return next((c for c in covering if first in c.named), covering[0] if covering else None)


def _rule_of(commit: Commit, observation: Observation | None) -> str:
    if commit.auto_ack:
        return AUTO_ACK
    if observation is not None and observation.run.messages[0] not in commit.named:
        return PREFIX
    return AFTER_ACK
