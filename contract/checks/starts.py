"""Where a consumer group starts reading a partition (contract 3): a range of possible cursors.

The first pop decides, and is decided within the profile's `start_s` after it was sent; where several pops may have
been the first (they overlap, or an answer was lost), each possible one adds to the range. For `new`, pushes answered
before the deciding pop are out, pushes invoked after it was decided are in, the rest may be either.

A pop of a named partition: some brokers let it decide for the whole queue, others only for its own partition, and
only once the partition exists. Where the profile does not say, both readings are allowed. A pop that was answered with
nothing by a broker without its storage may have decided, or not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from contract.checks.facts import NEVER, QUEUE_MODE, Call, Facts, Message
from contract.checks.readers import gave_nothing
from contract.checks.stored_order import BEYOND, OLDEST, Log
from contract.history import PopCall
from contract.profile import Profile

NEW_WORDS = frozenset({"new", "new-only", "new_only", "newonly"})


@dataclass(slots=True)
class Start:
    """The possible cursors before the first delivery, from `low` to `high`.

    `later`: what pops that decided nothing asked for, as (moment of invocation, start), where it was something else.
    """

    low: int
    high: int
    mode: str
    later: list[tuple[int, Start]] = field(default_factory=list)

    def asked_later(self, moment: int) -> list[Start]:
        """What pops that decided nothing asked for before `moment`, where it was something else."""
        return [start for invoked, start in self.later if invoked < moment]


def start_of(facts: Facts, log: Log, queue: str, partition: str, group: str, profile: Profile) -> Start:
    """The start of a group on a partition."""
    pops = facts.pops_of(queue, group)
    if group == QUEUE_MODE or not pops:
        return Start(OLDEST, OLDEST, "all")
    messages = [m for m in facts.partitions.get((queue, partition), ()) if not m.refused]
    deciders = _deciders(facts, pops, messages, partition, profile)
    ranges = [_decided_by(facts, log, messages, call, profile) for call in deciders]
    if not ranges:
        return Start(OLDEST, BEYOND, "unknown")
    low = min(start.low for start in ranges)
    high = max(start.high for start in ranges)
    modes = {start.mode for start in ranges}
    decided = Start(low, high, modes.pop() if len(modes) == 1 else "either")
    words = {_asks(call) for call in deciders}
    for call in pops:
        if call not in deciders and call.ok and _asks(call) not in words:
            decided.later.append((call.invoked, _decided_by(facts, log, messages, call, profile)))
    return decided


def _asks(call: Call) -> tuple[bool, str | None]:
    """What a pop asks for, apart from the spelling."""
    assert isinstance(call.request, PopCall)
    return ((call.request.mode or "new").lower() in NEW_WORDS, call.request.from_)


def _deciders(facts: Facts, pops: list[Call], messages: list[Message], partition: str, profile: Profile) -> list[Call]:
    """Every pop that may have been the one that decided."""
    chosen: dict[int, Call] = {}
    certain = [call for call in pops if not _without_storage(facts, call)]
    if profile.named_pop_registers is not False:
        settled = min((call.returned for call in certain), default=NEVER)
        chosen.update((call.number, call) for call in pops if call.invoked < settled)
    if profile.named_pop_registers is not True:
        exists = min((message.stored_by for message in messages), default=NEVER)
        touching = [call for call in pops if _named(call) in (None, partition)]
        settled = min(
            (
                call.returned
                for call in certain
                if _named(call) is None or (_named(call) == partition and exists < call.invoked)
            ),
            default=NEVER,
        )
        chosen.update((call.number, call) for call in touching if call.invoked < settled)
    return list(chosen.values())


def _without_storage(facts: Facts, call: Call) -> bool:
    return gave_nothing(call) and facts.without_storage(call.invoked_us, call.returned_us)


def _named(call: Call) -> str | None:
    assert isinstance(call.request, PopCall)
    return call.request.partition


def _decided_by(facts: Facts, log: Log, messages: list[Message], call: Call, profile: Profile) -> Start:
    request = call.request
    assert isinstance(request, PopCall)
    mode = (request.mode or "new").lower()
    if request.from_ is None and mode not in NEW_WORDS:
        return Start(OLDEST, OLDEST, "all")
    if request.from_ not in (None, "now"):
        return Start(OLDEST, BEYOND, "from")
    exists = min((message.stored_by for message in messages), default=NEVER)
    if profile.named_pop_registers is not True and request.partition is not None and exists > call.invoked:
        # A named pop that does not find the partition may decide only once it finds it, when it is answered.
        decided_by_us = min(call.until_us, call.returned_us)
    else:
        decided_by_us = _decided_by_us(facts, call, profile)
    low = _last_certainly_out(log, messages, call, by_clock=request.from_ is not None, profile=profile)
    high = _last_possibly_out(log, messages, min(call.until, call.returned), decided_by_us)
    if low > high:  # pushes out of their order: the order rules say so, this range then says nothing
        return Start(OLDEST, BEYOND, "new")
    return Start(low, high, "new")


def _decided_by_us(facts: Facts, call: Call, profile: Profile) -> int:
    """The latest time at which the start was decided."""
    end_us = min(call.until_us, call.returned_us)
    if call.unknown:
        return end_us
    soon_us = call.invoked_us + int(profile.start_s * 1_000_000)
    if facts.disturbed(call.invoked_us, soon_us) or facts.paused_at(call.invoked_us) or call.held_back:
        return end_us
    return min(end_us, soon_us)


def _last_certainly_out(log: Log, messages: list[Message], call: Call, *, by_clock: bool, profile: Profile) -> int:
    margin_us = int(profile.start_s * 1_000_000) if by_clock else 0
    places = [
        log.position[message]
        for message in messages
        if message.stored_by < call.invoked
        and message in log.position
        and (not margin_us or (message.push is not None and message.push.returned_us < call.invoked_us - margin_us))
    ]
    if not places or log.fragments > 1:
        return OLDEST
    return max(places)


def _last_possibly_out(log: Log, messages: list[Message], decided_by: int, decided_by_us: int) -> int:
    """The place before the first message that is certainly in; BEYOND where that is not known."""
    certainly_in = [
        message
        for message in messages
        if message.push is not None and (message.pushed_after > decided_by or message.pushed_after_us > decided_by_us)
    ]
    if len(certainly_in) == len(messages):
        return OLDEST
    if log.fragments > 1:
        return BEYOND
    places = [log.position[message] for message in certainly_in if message in log.position]
    if places:
        return min(places) - 1
    return max(log.position.values(), default=BEYOND) if not certainly_in else BEYOND
