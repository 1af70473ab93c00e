"""Heal, drain and audit: what they wait for, when they stop, and what they say when they could not do their work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from client import AckedItem, AckItem, Call, Message, Outcome, PopAnswer, PushedItem, PushItem
from contract import history
from contract.profile import REFERENCE, SIMULATED, Profile
from contract.runner import BrokerControl, NoControl, Summary, World, run_schedule
from contract.targets.virtual_time import VirtualLoop, run
from strategies import schedule as s

OK = Outcome.OK
GONE: Call[Any] = Call(Outcome.UNKNOWN, None, "ReadError")
NOBODY: Call[Any] = Call(Outcome.REFUSED, None, "ConnectError: connection refused")
EMPTY: Call[Any] = Call(OK, 204, "", PopAnswer())

Answer = Callable[[dict[str, Any]], Call[Any]]


def some(*numbers: int) -> Call[Any]:
    found = tuple(Message(f"m{number}", f"t{number}", "p0", "1", "L", b"1") for number in numbers)
    return Call(OK, 200, "", PopAnswer("L", found))


class Client:
    """Answers each pop by a function of what it asks; pushes and acks as told, else with success.

    Pushed messages are m1, m2, ...
    """

    def __init__(self, answer: Answer, *acks: Call[Any], pushes: Sequence[Call[Any]] = ()) -> None:
        self._answer = answer
        self._acks = list(acks)
        self._pushes = list(pushes)
        self._pushed = 0
        self.pops: list[dict[str, Any]] = []

    async def push(self, items: Sequence[PushItem], *, extensions: Mapping[str, Any]) -> Call[Any]:
        if self._pushes:
            return self._pushes.pop(0)
        first = self._pushed + 1
        self._pushed += len(items)
        return pushed(*[f"m{number}" for number in range(first, first + len(items))])

    async def pop(self, queue: str, *, extensions: Mapping[str, Any], **asked: Any) -> Call[Any]:
        self.pops.append(asked)
        return self._answer(asked)

    async def ack_batch(self, items: Sequence[AckItem], *, group: str, extensions: Mapping[str, Any]) -> Call[Any]:
        return self._acks.pop(0) if self._acks else Call(OK, 200, "", (AckedItem(True),) * len(items))


def pushed(*ids: str | None, status: str = "queued", unknown: bool = False) -> Call[Any]:
    return Call(OK, 201, "", tuple(PushedItem(message_id, "t", status, None, unknown) for message_id in ids))


def scripted(*answers: Call[Any], group: str = "A") -> Answer:
    """The answers in turn to pops of one group (with a dash at its end: of one that begins so), then nothing."""
    left = list(answers)

    def answer(asked: dict[str, Any]) -> Call[Any]:
        its = asked["group"].startswith(group) if group.endswith("-") else asked["group"] == group
        return left.pop(0) if left and its else EMPTY

    return answer


def play(
    client: Client,
    *steps: s.Step,
    partitions: int = 1,
    idle: bool = True,
    profile: Profile = SIMULATED,
    control: Callable[[VirtualLoop], BrokerControl] = lambda _: NoControl(),
) -> tuple[history.History, Summary]:
    schedule = s.Schedule(tuple(steps), partitions, (s.Group("A", "all"),))
    recorder = history.Recorder(history.Header(1, "0", "scripted", "simulated", {}, ("q",)))

    async def quiet(_: float) -> bool:
        return idle

    async def main(loop: VirtualLoop) -> Summary:
        world = World(
            client=lambda _: client,  # type: ignore[arg-type, return-value]
            queue="q",
            groups=("A",),
            audit_group="audit-",
            now_us=lambda: loop.now_us,
            idle=quiet,
            profile=profile,
            control=control(loop),
        )
        return await run_schedule(world, schedule, recorder)

    summary = run(main)
    return recorder.history(), summary


def phase_end(played: history.History, name: str) -> history.PhaseEnd:
    return next(event for event in played.events if isinstance(event, history.PhaseEnd) and event.name == name)


def phase(played: history.History, name: str) -> history.Phase:
    return next(event for event in played.events if isinstance(event, history.Phase) and event.name == name)


def test_phases_come_in_order() -> None:
    played, _ = play(Client(scripted()))
    phases = [event.name for event in played.events if isinstance(event, history.Phase)]
    assert phases == ["schedule", "heal", "audit", "drain"]


def test_the_last_event_is_the_end() -> None:
    played, _ = play(Client(scripted()))
    assert isinstance(played.events[-1], history.End)


def test_requests_are_counted() -> None:
    _, summary = play(Client(scripted(some(1), group="audit-0")), s.Push((s.Item(),)))
    assert summary.requests == 1 + 1 + 2  # the push; the audit by wildcard; the drain by wildcard and by name


# Heal -----------------------------------------------------------------------------------------------------------------


SETTLED_US = 501_000
"""What heal waits in any case: the late effects of the profile, and a millisecond."""


def test_heal_waits_for_the_lease_of_an_answered_pop() -> None:
    played, _ = play(Client(scripted(some(1))), s.Pop(1, lease_s=7))
    assert phase_end(played, "heal").at_us >= 7_000_000


def test_heal_waits_for_the_lease_of_an_unanswered_pop() -> None:
    played, _ = play(Client(scripted(GONE)), s.Pop(1, lease_s=7, wait_ms=3000))
    assert phase_end(played, "heal").at_us >= 10_000_000


def test_heal_waits_for_the_default_lease_of_the_queue() -> None:
    played, _ = play(Client(scripted(some(1))), s.Pop(1, lease_s=None))
    assert 60_000_000 <= phase_end(played, "heal").at_us < 61_000_000


def test_heal_does_not_wait_for_an_auto_ack() -> None:
    played, _ = play(Client(scripted(some(1))), s.Pop(1, lease_s=7, auto_ack=True))
    assert phase_end(played, "heal").at_us == SETTLED_US


def test_heal_does_not_wait_for_a_refused_pop() -> None:
    played, _ = play(Client(scripted(Call(Outcome.REFUSED, 400, "bad"))), s.Pop(1, lease_s=7))
    assert phase_end(played, "heal").at_us == SETTLED_US


class BackSince(NoControl):
    """A broker whose storage came back after so many seconds."""

    def __init__(self, loop: VirtualLoop, since_s: float) -> None:
        self._loop = loop
        self._since_s = since_s

    @property
    def storage_back_for_s(self) -> float:
        return max(0.0, self._loop.now_us / 1_000_000 - self._since_s)


SPOOLING = msgspec.structs.replace(SIMULATED, spool_s=10.0)


@pytest.mark.parametrize(("status", "audit_s"), [("buffered", 15.1), ("queued", 0.501)])
def test_heal_waits_until_what_was_spooled_is_stored(status: str, audit_s: float) -> None:
    client = Client(scripted(), pushes=[pushed("m1", status=status)])
    played, _ = play(client, s.Push((s.Item(),)), profile=SPOOLING, control=lambda loop: BackSince(loop, 5.0))
    assert phase(played, "audit").at_us == round(audit_s * 1_000_000)


def test_heal_does_not_wait_where_nobody_stopped_the_storage() -> None:
    client = Client(scripted(), pushes=[pushed("m1", status="buffered")])
    played, _ = play(client, s.Push((s.Item(),)), profile=SPOOLING)
    assert phase(played, "audit").at_us == 501_000


def test_heal_says_when_calls_are_still_in_flight() -> None:
    played, _ = play(Client(scripted()), idle=False)
    assert phase_end(played, "heal") == history.PhaseEnd(
        SETTLED_US, "heal", False, "calls are still in flight after 2000 s"
    )


# Drain ----------------------------------------------------------------------------------------------------------------


def test_drain_pops_by_wildcard_and_then_each_partition_by_name() -> None:
    client = Client(scripted())
    play(client, partitions=2)
    drain = [asked for asked in client.pops if asked["group"] == "A"]
    assert [asked["partition"] for asked in drain] == [None, "p0", "p1"]


def test_drain_pops_everything_under_a_lease() -> None:
    client = Client(scripted())
    play(client)
    asked = next(asked for asked in client.pops if asked["group"] == "A")
    assert (asked["partitions"], asked["batch"], asked["lease_s"], asked["mode"]) == (0, 1000, 30, "all")


def test_drain_acks_what_it_got_in_one_call() -> None:
    played, _ = play(Client(scripted(some(1, 2))))
    acks = [event.request for event in played.events if isinstance(event, history.Invoke)]
    completed = [request for request in acks if isinstance(request, history.AckCall)]
    assert [(request.batch, request.message_ids, request.statuses) for request in completed] == [
        (True, ("m1", "m2"), ("completed", "completed"))
    ]


def test_drain_starts_again_when_a_named_pop_gave_something() -> None:
    client = Client(scripted(EMPTY, some(1)))
    play(client)
    drain = [asked["partition"] for asked in client.pops if asked["group"] == "A"]
    assert drain == [None, "p0", "p0", None, "p0"]


def test_a_drain_that_ended_is_complete() -> None:
    played, _ = play(Client(scripted(some(1))))
    assert phase_end(played, "drain").complete


def test_a_drain_that_never_ends_is_stopped_by_its_deliveries() -> None:
    played, _ = play(Client(lambda asked: some(*range(10)) if asked["group"] == "A" else EMPTY))
    end = phase_end(played, "drain")
    assert (end.complete, end.why) == (False, "30 deliveries and no end; 20 were expected at most")


def test_a_drain_that_never_ends_is_stopped_by_its_rounds() -> None:
    pushes = s.Push((s.Item(),) * 20)
    played, _ = play(Client(lambda asked: some(1) if asked["group"] == "A" else EMPTY), pushes)
    end = phase_end(played, "drain")
    assert (end.complete, end.why) == (False, "53 answers and no end; 52 were expected at most")


def test_an_unanswered_pop_of_the_drain_is_tried_again_when_its_lease_is_over() -> None:
    played, _ = play(Client(scripted(GONE, some(1))))
    end = phase_end(played, "drain")
    assert end.complete
    assert end.at_us - phase(played, "drain").at_us >= 30_000_000


def test_a_drain_without_answers_is_given_up() -> None:
    played, _ = play(Client(lambda asked: GONE if asked["group"] == "A" else EMPTY))
    end = phase_end(played, "drain")
    assert (end.complete, end.why) == (False, "pop not answered, 4 times")


def test_an_ack_without_success_is_waited_out() -> None:
    refused: Call[Any] = Call(OK, 200, "", (AckedItem(False, "invalid or expired lease"),))
    played, _ = play(Client(scripted(some(1), some(1)), refused))
    end = phase_end(played, "drain")
    assert end.complete
    assert end.at_us - phase(played, "drain").at_us >= 30_000_000


def test_a_refused_pop_ends_the_drain() -> None:
    refused: Call[Any] = Call(Outcome.REFUSED, 400, "status 400")
    played, _ = play(Client(lambda asked: refused if asked["group"] == "A" else EMPTY))
    end = phase_end(played, "drain")
    assert (end.complete, end.why) == (False, "pop refused: status 400")


def test_a_broker_that_is_away_for_a_moment_is_tried_again() -> None:
    for group in ("A", "audit-"):
        played, summary = play(Client(scripted(NOBODY, NOBODY, group=group)))
        assert (phase_end(played, "drain").complete, summary.unreachable) == (True, "")
        assert phase_end(played, "audit").complete


def test_a_broker_that_is_gone_ends_the_run() -> None:
    played, summary = play(Client(lambda _: NOBODY))
    why = "the broker cannot be reached: ConnectError: connection refused"
    assert (phase_end(played, "drain").why, phase_end(played, "audit").why, summary.unreachable) == (why, why, why)


# Audit ----------------------------------------------------------------------------------------------------------------


def audits(client: Client) -> list[dict[str, Any]]:
    return [asked for asked in client.pops if asked["group"].startswith("audit-")]


def audit_groups(client: Client) -> list[str]:
    return [asked["group"] for asked in audits(client)]


TWO = s.Push((s.Item(), s.Item(1)))
UNSEEN = [GONE]
"""A push without an answer, after which only an audit that commits can tell what is there."""


def test_the_audit_comes_before_anything_is_drained() -> None:
    client = Client(scripted(some(1)))
    play(client)
    assert list(dict.fromkeys(asked["group"] for asked in client.pops)) == ["audit-0", "A"]


def test_a_glance_reads_all_from_the_start_under_a_short_lease() -> None:
    client = Client(scripted())
    play(client)
    asked = audits(client)[0]
    names = ("group", "mode", "auto_ack", "lease_s", "partitions", "batch", "partition")
    assert [asked[name] for name in names] == ["audit-0", "all", False, 1, 0, 1000, None]


def test_a_glance_that_saw_all_that_is_known_is_enough() -> None:
    client = Client(scripted(some(1, 2), group="audit-0"))
    played, _ = play(client, TWO)
    assert audit_groups(client) == ["audit-0"]
    assert phase_end(played, "audit").complete


def test_a_glance_acks_nothing() -> None:
    played, _ = play(Client(scripted(some(1, 2), group="audit-0")), TWO)
    assert not [event for event in played.events if isinstance(event, history.Invoke) and "Ack" in str(event.request)]


def test_a_glance_reads_by_name_what_the_wildcard_did_not_bring() -> None:
    client = Client(scripted(some(1), group="audit-0"))
    play(client, partitions=3)
    assert [asked["partition"] for asked in audits(client)] == [None, "p1", "p2"]


def test_a_glance_may_find_more_than_is_known() -> None:
    client = Client(scripted(some(1, 2, 3), group="audit-0"))
    play(client, TWO)
    assert set(audit_groups(client)) == {"audit-0"}


def test_a_glance_that_misses_a_known_message_is_followed_by_an_audit_that_commits() -> None:
    client = Client(scripted(some(1), group="audit-0"))
    played, _ = play(client, TWO)
    assert audit_groups(client) == ["audit-0", "audit-1", "audit-1"]
    assert phase_end(played, "audit").complete


def test_a_duplicate_tells_of_a_message_that_a_glance_must_see() -> None:
    client = Client(scripted(), pushes=[pushed("m9", status="duplicate")])
    play(client, s.Push((s.Item(),)))
    assert audit_groups(client) == ["audit-0", "audit-0", "audit-1", "audit-1"]


def test_a_glance_without_an_answer_is_followed_by_an_audit_that_commits() -> None:
    client = Client(lambda asked: GONE if asked["group"] == "audit-0" else EMPTY)
    played, _ = play(client)
    assert audit_groups(client) == ["audit-0", "audit-1", "audit-1"]
    assert phase_end(played, "audit").complete


@pytest.mark.parametrize(
    "answer",
    [
        GONE,
        pushed("m1", status="buffered"),
        pushed("m1", unknown=True),
        pushed(None, status="error", unknown=True),
        pushed(None),
    ],
    ids=["unanswered", "buffered", "item unknown", "storage error", "no id"],
)
def test_no_glance_where_more_may_be_stored_than_is_known(answer: Call[Any]) -> None:
    client = Client(scripted(), pushes=[answer])
    play(client, s.Push((s.Item(),)))
    assert audit_groups(client) == ["audit-1", "audit-1"]


@pytest.mark.parametrize(
    "answer",
    [
        Call(Outcome.REFUSED, 400, "bad"),
        pushed(None, status="error"),
        pushed("m1", status="duplicate"),
        pushed(None, status="duplicate"),
    ],
    ids=["refused", "item refused", "duplicate", "duplicate without an id"],
)
def test_a_push_that_stored_nothing_new_leaves_the_glance(answer: Call[Any]) -> None:
    client = Client(scripted(some(1), group="audit-0"), pushes=[answer])
    play(client, s.Push((s.Item(),)))
    assert audit_groups(client) == ["audit-0"]


def test_no_glance_where_a_batch_may_not_hold_everything() -> None:
    for items, first in ((500, "audit-0"), (501, "audit-1")):
        client = Client(scripted())
        play(client, s.Push((s.Item(),) * items))
        assert audit_groups(client)[0] == first


def test_no_glance_while_a_push_is_on_its_way() -> None:
    class SlowAtRepetitions(Client):
        async def push(self, items: Sequence[PushItem], *, extensions: Mapping[str, Any]) -> Call[Any]:
            if self._pushed:
                await asyncio.sleep(10_000)
            return await super().push(items, extensions=extensions)

    client = SlowAtRepetitions(scripted())
    played, _ = play(client, s.RepeatRequest(s.Push((s.Item(),)), ms=100))
    assert not phase_end(played, "heal").complete
    assert set(audit_groups(client)) == {"audit-1"}


def test_the_lease_of_a_glance_is_waited_out_where_waiting_is_free() -> None:
    played, _ = play(Client(scripted()))
    assert phase(played, "drain").at_us - phase(played, "audit").at_us == 1_001_000


def test_the_lease_of_a_glance_is_not_waited_out_in_real_time() -> None:
    played, _ = play(Client(scripted()), profile=REFERENCE)
    assert phase(played, "drain").at_us == phase(played, "audit").at_us


def test_an_audit_that_commits_reads_all_from_the_start_with_a_fresh_group() -> None:
    client = Client(scripted(), pushes=UNSEEN)
    play(client, s.Push((s.Item(),)))
    asked = audits(client)[0]
    assert (asked["group"], asked["mode"], asked["auto_ack"], asked["partitions"], asked["batch"]) == (
        "audit-1", "all", True, 0, 1000,
    )  # fmt: skip


@pytest.mark.parametrize("pushes", [(), UNSEEN], ids=["glance", "audit that commits"])
def test_audit_reads_each_partition_by_name_as_well(pushes: Sequence[Call[Any]]) -> None:
    client = Client(scripted(), pushes=pushes)
    play(client, *[s.Push((s.Item(),)) for _ in pushes], partitions=3)
    assert [asked["partition"] for asked in audits(client)] == [None, "p0", "p1", "p2"]


def test_an_audit_that_commits_starts_again_when_a_named_pop_gave_something() -> None:
    client = Client(scripted(EMPTY, some(1), group="audit-1"), pushes=UNSEEN)
    play(client, s.Push((s.Item(),)))
    assert [asked["partition"] for asked in audits(client)] == [None, "p0", "p0", None, "p0"]


def test_an_unanswered_audit_starts_again_with_another_group() -> None:
    client = Client(lambda asked: GONE if asked["group"] in ("audit-0", "audit-1") else EMPTY)
    played, _ = play(client)
    assert audit_groups(client) == ["audit-0", "audit-1", "audit-2", "audit-2"]
    assert phase_end(played, "audit").complete


def test_an_audit_that_is_never_answered_is_not_complete() -> None:
    client = Client(lambda asked: GONE if asked["group"] != "A" else EMPTY)
    played, _ = play(client)
    end = phase_end(played, "audit")
    assert (end.complete, end.why) == (False, "pop not answered in 3 audits")
    assert audit_groups(client) == ["audit-0", "audit-1", "audit-2", "audit-3"]


def test_a_drain_follows_an_audit_that_is_not_complete() -> None:
    refused: Call[Any] = Call(Outcome.REFUSED, 400, "status 400")
    played, _ = play(Client(lambda asked: refused if asked["group"] != "A" else EMPTY))
    assert phase_end(played, "audit").why == "pop refused: status 400"
    assert phase_end(played, "drain").complete


@pytest.mark.parametrize("name", ["schedule", "heal", "audit", "drain"])
def test_each_phase_says_that_it_is_complete(name: str) -> None:
    played, _ = play(Client(scripted()))
    assert phase_end(played, name).complete
