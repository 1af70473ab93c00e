"""What an ack may do to one reader, and what it may be answered (contract.md section 5)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from contract.exact.acts import Act, Settle
from contract.exact.state import Reader, ReaderKey, State

_STRENGTH = {"completed": 0, "retry": 1, "failed": 2, "dlq": 3}


class Outcome(NamedTuple):
    """What the items of an ack may do together. `filed`: offsets dead-lettered; `idle`: offsets without effect."""

    cursor: int
    failures: int
    release: bool
    filed: frozenset[int]
    idle: frozenset[int]


class Settling:
    """Acks of one history. A lease may end `early_us` before its time."""

    def __init__(self, acts: Sequence[Act], early_us: int) -> None:
        self.acts, self.early_us = acts, early_us

    def step(self, state: State, act: Settle, done: int) -> Iterator[State]:
        """Every state after the ack; `done` has a bit for each act that came before."""
        key = (act.group, act.partition)
        reader = state.readers.get(key, Reader())
        if not self._may_be_filed(act):
            return
        if act.lease_id is None:
            if reader.lease is None:
                yield from self._unbounded(state, act, key, reader)
            else:
                yield from self._bounded(state, act, key, reader)
            return
        dead: State | None = state
        if reader.lease is not None and reader.lease.id == act.lease_id:
            live, dead = state.alive(key), state.run_out(key, self.early_us)
            if live is not None:
                yield from self._bounded(live, act, key, reader)
        if dead is not None and self._refused(dead, act, reader, done):
            yield dead

    def _may_be_filed(self, act: Settle) -> bool:
        """Whether `dlq` is answered for items only whose message some item of the call failed or gave up."""
        items = list(zip(act.transaction_ids, act.words, strict=True))
        given_up = {transaction_id for transaction_id, word in items if word in ("failed", "dlq")}
        flags = zip(act.flags or (), items, strict=False)
        return all(transaction_id in given_up for flag, (transaction_id, _) in flags if flag and flag.dead_lettered)

    def _places(self, state: State, act: Settle) -> list[list[int]]:
        """For each item, the offsets that its transactionId may mean."""
        log = state.logs.get(act.partition, ())
        return [
            [place for place, entry in enumerate(log) if entry.transaction_id == transaction_id]
            for transaction_id in act.transaction_ids
        ]

    def _refused(self, state: State, act: Settle, reader: Reader, done: int) -> bool:
        """Whether a dead lease may be answered so: refused, a no-op below the cursor, or the repetition of an ack."""
        if act.flags is None:
            return True
        for item, places in enumerate(self._places(state, act)):
            flag = act.flags[item]
            if flag is None:
                continue
            below = act.words[item] == "completed" and any(place < reader.cursor for place in places)
            if (flag.success and not below and not self._repeats(act, item, done)) or (flag.noop and not below):
                return False
        return True

    def _repeats(self, act: Settle, item: int, done: int) -> bool:
        """Whether the same ack acted before and was answered so: then it may be answered the same way again."""
        return any(
            done >> index & 1
            and isinstance(other, Settle)
            and (other.group, other.partition, other.lease_id) == (act.group, act.partition, act.lease_id)
            and (other.transaction_ids, other.words) == (act.transaction_ids, act.words)
            and _may_have_succeeded(other, item)
            for index, other in enumerate(self.acts)
        )

    def _bounded(self, state: State, act: Settle, key: ReaderKey, reader: Reader) -> Iterator[State]:
        """An ack bounded by a leased batch."""
        assert reader.lease is not None
        last = reader.lease.last
        meanings: list[list[int | None]] = []
        for places in self._places(state, act):
            inside: list[int | None] = [place for place in places if reader.cursor <= place < last]
            below: list[int | None] = [-1] if any(place < reader.cursor for place in places) else []
            meanings.append(inside + below or [None])
        for meant in itertools.product(*meanings):
            words: dict[int, str] = {}
            for place, word in zip(meant, act.words, strict=True):
                if place is not None and place >= 0:
                    words[place] = max(words.get(place, "completed"), word, key=_STRENGTH.__getitem__)
            if not words:
                if self._answer_fits(act, meant, None, state.settings.files):
                    yield state
                continue
            for outcome in self._outcomes(words, reader.cursor, reader.failures, last, state.settings.retry_limit):
                if self._answer_fits(act, meant, outcome, state.settings.files):
                    yield from self._settled(state, act, meant, outcome)

    def _outcomes(
        self, words: Mapping[int, str], cursor: int, failures: int, last: int, limit: int, *, spent: bool = False
    ) -> Iterator[Outcome]:
        """What the strongest words at some offsets of a leased batch may do together."""
        stop = min((place for place, word in words.items() if word in ("failed", "retry")), default=None)
        passed = [place for place in words if stop is None or place < stop]
        reached = max(passed) + 1 if passed else cursor
        filed = frozenset(place for place in passed if words[place] == "dlq")
        if stop is None:
            ends = reached >= last
            yield Outcome(reached, 0 if ends or filed else failures, ends, filed, frozenset())
            if filed and not ends:
                yield Outcome(reached, 0, True, filed, frozenset())
            return
        above = {place: word for place, word in words.items() if place > stop}
        spends = {not spent} if words[stop] == "failed" else {False, not spent and "failed" in above.values()}
        for count, spend in itertools.product({failures, 0} if filed else {failures}, spends):
            if spend and count >= limit:
                yield from self._spent(stop, above, filed, last)
                continue
            for place in {reached, stop}:
                yield Outcome(place, count + spend, True, filed, frozenset(above))

    def _spent(self, stop: int, above: Mapping[int, str], filed: frozenset[int], last: int) -> Iterator[Outcome]:
        """The retry budget is spent: the message is filed or dropped, and passed; what is above may count or not."""
        filed |= {stop}
        yield Outcome(stop + 1, 0, True, filed, frozenset(above))
        if above:
            for further in self._outcomes(above, stop + 1, 0, last, 0, spent=True):
                yield further._replace(filed=further.filed | filed)

    def _settled(self, state: State, act: Settle, meant: tuple[int | None, ...], outcome: Outcome) -> Iterator[State]:
        """The reader after an outcome, its lease released or kept as the answer says."""
        key = (act.group, act.partition)
        reader = state.readers[key]._replace(cursor=outcome.cursor, failures=outcome.failures)
        for place, flag in zip(meant, act.flags or (), strict=False):
            if (
                flag is not None
                and place is not None
                and place >= 0
                and flag.success
                and flag.released not in (None, outcome.release)
            ):
                return
        yield state.with_reader(key, reader._replace(lease=None) if outcome.release else reader)

    def _answer_fits(self, act: Settle, meant: tuple[int | None, ...], outcome: Outcome | None, files: bool) -> bool:
        """Whether the flags of an answer say what happened. -1: at or below the cursor; None: not to be found."""
        if act.flags is None:
            return True
        for place, word, flag in zip(meant, act.words, act.flags, strict=True):
            if flag is None:
                continue
            if place is None or place < 0 or outcome is None:
                if flag.success != (place is not None and word == "completed"):
                    return False
                continue
            filed = place in outcome.filed
            silent = filed and not flag.dead_lettered and len(act.words) == 1 and files
            if word == "failed" and (silent or (flag.dead_lettered and not filed)):
                return False
            if flag.noop or (not flag.success and place not in outcome.idle):
                return False
        return True

    def _unbounded(self, state: State, act: Settle, key: ReaderKey, reader: Reader) -> Iterator[State]:
        """No lease and no leased batch: `completed` may reach any stored message, or be refused; the rest is idle."""
        options: list[list[int]] = []
        for item, places in enumerate(self._places(state, act)):
            above = [place + 1 for place in places if place >= reader.cursor]
            below = any(place < reader.cursor for place in places)
            flag = act.flags[item] if act.flags is not None else None
            if act.words[item] != "completed":
                options.append([0] if flag is None or places or not flag.success else [])
            elif flag is None:
                options.append([*above, 0])
            else:
                moved = [] if flag.noop else above
                stays = [0] if below else []
                options.append(moved + stays if flag.success else [] if below and not above else [0])
        for reached in {max(chosen) for chosen in itertools.product(*options)}:
            yield state.with_reader(key, reader._replace(cursor=max(reader.cursor, reached)))


def _may_have_succeeded(act: Settle, item: int) -> bool:
    flag = act.flags[item] if act.flags is not None else None
    return flag is None or flag.success
