"""What the rules share about one history, computed once: facts, stored order, and each reader's cursor and leases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from contract.checks.cursors import CursorTrace, trace_cursor
from contract.checks.dead_leases import DeadAck, acks_under_dead_leases
from contract.checks.facts import Call, Facts, Message, PartitionKey, Run, gather
from contract.checks.leases import Lease, Occupancy, build_leases, build_occupancy
from contract.checks.readers import Reader, ReaderKey, build_readers
from contract.checks.starts import start_of
from contract.checks.stored_order import Log, build_logs, fragment
from contract.history import History
from contract.profile import Profile


@dataclass(slots=True)
class ReaderModel:
    """One reader with its stored order, leases and cursor."""

    reader: Reader
    log: Log
    leases: list[Lease]
    occupancy: Occupancy
    dead_acks: list[DeadAck]
    trace: CursorTrace


def _may_claim(messages: list[Message], log: Log, trace: CursorTrace, call: Call, latest_us: int) -> bool:
    """Whether, up to a time, there can have been a message above what the group had certainly completed."""
    for message in messages:
        if message.pushed_after_us > latest_us or message.pushed_after > call.until:
            continue
        place = log.position.get(message)
        low = None if place is None else trace.low_during(call, fragment(place))
        if place is None or low is None or place > low:
            return True
    return False


@dataclass(slots=True)
class Model:
    """What every check reads."""

    facts: Facts
    profile: Profile
    logs: dict[PartitionKey, Log]
    readers: dict[ReaderKey, ReaderModel]
    by_partition: dict[PartitionKey, list[ReaderModel]] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    """What one check computed and others read as well, by the name of the module that computes it."""

    def audited(self) -> Iterator[tuple[list[Message], Run]]:
        """What the audit read of each partition, with a run that shows it; nothing where it was not completed."""
        runs: dict[PartitionKey, list[Run]] = {}
        span = self.facts.phase("audit")
        for run in self.facts.runs:
            if span is not None and span.complete and run.call.phase == "audit" and run.call.invoked > span.begin:
                runs.setdefault((run.queue, run.partition), []).append(run)
        for found in runs.values():
            same = [run for run in found if run.group == found[-1].group]
            yield [message for run in same for message in run.messages], same[-1]

    def others(self, model: ReaderModel) -> list[ReaderModel]:
        """The other readers of the same partition."""
        key = (model.reader.queue, model.reader.partition)
        return [other for other in self.by_partition.get(key, ()) if other is not model]


def build_model(history: History, profile: Profile) -> Model:
    """Reads a history into the model."""
    facts = gather(history, storage_settle_s=profile.storage_settle_s, spool_s=profile.spool_s)
    logs = build_logs(facts)
    model = Model(facts, profile, logs, {})
    for key, reader in build_readers(facts).items():
        partition = (reader.queue, reader.partition)
        log = logs.get(partition)
        if log is None:  # nothing was ever pushed to it or delivered from it
            continue
        leases = build_leases(facts, reader, profile)
        dead_acks = acks_under_dead_leases(reader, leases)
        distrusted = {(dead.ack.call.number, item.index) for dead in dead_acks for item in dead.ack.items}
        start = start_of(facts, log, reader.queue, reader.partition, reader.group, profile)
        trace = trace_cursor(facts, reader, log, start, leases, distrusted, profile)
        messages = facts.partitions.get(partition, [])
        occupancy = build_occupancy(facts, reader, leases, profile, partial(_may_claim, messages, log, trace))
        built = ReaderModel(reader, log, leases, occupancy, dead_acks, trace)
        model.readers[key] = built
        model.by_partition.setdefault(partition, []).append(built)
    return model
