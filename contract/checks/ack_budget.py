"""ack/budget-spent-once and ack/retry-is-free: the retry budget of a (partition, group).

Reads the answers of `failed` acks. The budget is one counter: failures 1 to `retryLimit` come back, the next one is
dead-lettered; one failure a call and lease, however many items. A completed batch (one of autoAck may count as such), a
dead letter, a drop or a seek resets it; a `retry`, an expiry or a partial ack does not, and `retry` does not count.
Proves: a `failed` answered `dlq:true` was at least number `retryLimit` + 1, counting every failure that may have
happened since the last certain reset (budget-spent-once; retry-is-free where counting the retries as failures would
explain it), and a `failed` answered without it was at most number `retryLimit`, counting only those certain since the
last possible reset (budget-spent-once).
The same ack sent again under the same lease may only repeat its answer: it counts once for certain, and is not read.
Cannot prove anything about failures that were not answered, or beside an ack without a lease that may act late, and
nothing too late where dead letters are switched off.
"""

from __future__ import annotations

import bisect
from itertools import accumulate

from contract.checks.facts import Call, Facts
from contract.checks.model import Model, ReaderModel
from contract.checks.options import possible_values
from contract.checks.readers import Ack, AckedItem, Reader
from contract.checks.report import Report, line_of
from contract.history import ConfigureCall, PopCall
from contract.verdicts import Violation

SPENT, RETRY = RULES = ("ack/budget-spent-once", "ack/retry-is-free")


def check(model: Model, report: Report) -> None:
    """Files one violation for each answer that does not fit the count."""
    for reader_model in model.readers.values():
        if reader_model.reader.acks:
            _Counter(model, reader_model, report).run()


def dead_letters_on(facts: Facts, queue: str) -> bool:
    """Whether dead letters were never touched: then a spent budget is answered `dlq:true`."""
    for call in facts.configures:
        request = call.request
        assert isinstance(request, ConfigureCall)
        if request.queue == queue and {"deadLetterQueue", "dlqAfterMaxRetries"} & set(request.options):
            return False
    return True


def retry_limits(model: Model, queue: str, ack: Ack) -> tuple[int, int]:
    """Lowest and highest retry limit that may be in force while an ack acts."""
    values = possible_values(model.facts, queue, "retryLimit", model.profile.retry_limit, ack.call)
    limits = [value for value in values if isinstance(value, int)]
    return min(limits), max(limits)


class _Counter:
    """Counts the failures of one reader: as many as possible, and as many as certain."""

    def __init__(self, model: Model, reader_model: ReaderModel, report: Report) -> None:
        self.model, self.reader_model, self.report = model, reader_model, report
        self.files = dead_letters_on(model.facts, reader_model.reader.queue)
        self.least = self.retries = 0
        self.failing: list[Ack] = []
        """Every ack that may count since the last certain reset."""
        self.seeks = [seek.call for seek in reader_model.reader.seeks if seek.certain]
        self.restarts = model.facts.restarts
        self.loose = [ack for ack in reader_model.reader.acks if ack.lease_id is None and ack.may_have_acted]
        lives = _lives_of_resets(reader_model.reader, self.loose)
        self.begins = [begin for begin, _ in lives]
        self.ends = list(accumulate((end for _, end in lives), max))

    def run(self) -> None:
        last = -1
        sent: set[tuple[str | None, str]] = set()
        for ack in self.reader_model.reader.acks:
            if not ack.may_have_acted:
                continue
            if self._may_be_reset(last, ack):
                self.least = 0
            self._reset_by_seeks(ack)
            last = ack.call.invoked
            failed = [item for item in ack.items if item.fails and item.may_have_acted]
            repeated = any((ack.lease_id, item.transaction_id) in sent for item in failed)
            sent.update((ack.lease_id, item.transaction_id) for item in failed)
            if failed:
                self.failing.append(ack)
                if ack.call.ok and ack.lease_id is not None and not repeated:
                    self._compare(ack, failed)
            elif any(item.status == "retry" for item in ack.items):
                self.retries += 1
            self._reset(ack, [] if repeated else failed)

    def _reset_by_seeks(self, ack: Ack) -> None:
        """A seek that was answered before an ack was sent cleared what can have failed by then."""
        for seek in [seek for seek in self.seeks if seek.returned < ack.call.invoked]:
            self.seeks.remove(seek)
            self.failing = [other for other in self.failing if other.until > seek.invoked]
            self.retries = 0

    def _may_be_reset(self, last: int, ack: Ack) -> bool:
        """Whether something but the acks in their order may have cleared the count between the last ack and this one.

        Budgets may not survive a restart.
        """
        if any(last < moment < ack.until for moment in self.restarts):
            return True
        count = bisect.bisect_left(self.begins, ack.until)
        return count > 0 and self.ends[count - 1] > last

    def _compare(self, ack: Ack, failed: list[AckedItem]) -> None:
        """A dead letter is read where only failures can have made it; its absence only in a call of one item."""
        if any(item.status == "dlq" for item in ack.items) or _overlaps(self.reader_model, ack):
            return
        alone = len(ack.items) == 1
        filed = any(item.dead_lettered for item in failed)
        if not all(item.done for item in failed) or not (filed or alone):
            return
        lowest, highest = retry_limits(self.model, self.reader_model.reader.queue, ack)
        self.report.compared[SPENT] += 1
        if self.retries:
            self.report.compared[RETRY] += 1
        most = len(self.failing)
        if filed and most <= lowest:
            rule = RETRY if most + self.retries > lowest else SPENT
            self._file(rule, ack, f"failure {most} of {lowest} comes back", "it was dead-lettered")
        elif not filed and self.files and self.least + 1 > highest:
            expected = f"failure {self.least + 1} is dead-lettered: the limit is {highest}"
            self._file(SPENT, ack, expected, "it was answered without dlq")

    def _reset(self, ack: Ack, failed: list[AckedItem]) -> None:
        """What may have reset the counter makes the certain count 0; what certainly did makes the possible count 0."""
        filed = [item for item in ack.items if item.dead_lettered or item.status == "dlq"]
        completes = [item for item in ack.items if item.completes and item.may_have_acted]
        if filed or completes or not ack.call.ok or ack.lease_id is None:
            self.least = 0
        elif failed and all(item.done for item in failed) and len(ack.items) == 1:
            self.least += 1
        if ack.call.ok and failed and failed[0].done and failed[0].dead_lettered and len(ack.items) == 1:
            loose = [other for other in self.failing if other.lease_id is None and other is not ack]
            self.failing = [other for other in loose if other.until > ack.call.invoked]  # it may act behind
            self.retries = 0

    def _file(self, rule: str, ack: Ack, expected: str, observed: str) -> None:
        reader = self.reader_model.reader
        self.report.violate(
            Violation(
                rule,
                reader.queue,
                reader.partition,
                reader.group,
                expected,
                observed,
                (ack.call.number,),
                line=line_of(ack.call.returned),
                at_us=ack.call.returned_us,
            )
        )


def _overlaps(model: ReaderModel, ack: Ack) -> bool:
    """Whether another ack of the reader may have acted while this one was under way."""
    return any(
        other is not ack and other.call.invoked < ack.call.returned and other.until > ack.call.invoked
        for other in model.reader.acks
    )


def _lives_of_resets(reader: Reader, loose: list[Ack]) -> list[tuple[int, int]]:
    """When a seek, an autoAck pop or an ack without a lease may clear the count, by the first moment of each."""
    lives = [(seek.call.invoked, seek.call.until) for seek in reader.seeks]
    lives += [(run.call.invoked, run.call.until) for run in reader.runs if run.auto_ack]
    lives += [(call.invoked, call.until) for call in reader.unseen if _auto_ack(call)]
    lives += [(ack.call.invoked, ack.until) for ack in loose]
    return sorted(lives)


def _auto_ack(call: Call) -> bool:
    assert isinstance(call.request, PopCall)
    return call.request.auto_ack
