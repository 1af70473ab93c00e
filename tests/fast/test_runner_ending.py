"""Heal, drain and audit: what they wait for, when they stop, and what they say when they could not do their work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from client import AckedItem, AckItem, Call, Message, Outcome, PopAnswer, PushedItem, PushItem
from contract import history
from contract.profile import SIMULATED
from contract.runner import Summary, World, run_schedule
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
    """Answers each pop by a function of what it asks; acks as told."""

    def __init__(self, answer: Answer, *acks: Call[Any]) -> None:
        self._answer = answer
        self._acks = list(acks)
        self.pops: list[dict[str, Any]] = []

    async def push(self, items: Sequence[PushItem], *, extensions: Mapping[str, Any]) -> Call[Any]:
        return Call(OK, 201, "", tuple(PushedItem("m", "t", "queued", 0) for _ in items))

    async def pop(self, queue: str, *, extensions: Mapping[str, Any], **asked: Any) -> Call[Any]:
        self.pops.append(asked)
        return self._answer(asked)

    async def ack_batch(self, items: Sequence[AckItem], *, group: str, extensions: Mapping[str, Any]) -> Call[Any]:
        return self._acks.pop(0) if self._acks else Call(OK, 200, "", (AckedItem(True),) * len(items))


def scripted(*answers: Call[Any]) -> Answer:
    """The answers in turn, then nothing."""
    left = list(answers)
    return lambda _: left.pop(0) if left else EMPTY


def play(client: Client, *steps: s.Step, partitions: int = 1, idle: bool = True) -> tuple[history.History, Summary]:
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
            profile=SIMULATED,
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
    assert phases == ["schedule", "heal", "drain", "audit"]


def test_the_last_event_is_the_end() -> None:
    played, _ = play(Client(scripted()))
    assert isinstance(played.events[-1], history.End)


def test_requests_are_counted() -> None:
    _, summary = play(Client(scripted()), s.Push((s.Item(),)))
    assert summary.requests == 1 + 2 + 2  # the push; drain and audit each by wildcard and by name


# Heal -----------------------------------------------------------------------------------------------------------------


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
    assert phase_end(played, "heal").at_us < 100_000


def test_heal_does_not_wait_for_a_refused_pop() -> None:
    played, _ = play(Client(scripted(Call(Outcome.REFUSED, 400, "bad"))), s.Pop(1, lease_s=7))
    assert phase_end(played, "heal").at_us < 100_000


def test_heal_says_when_calls_are_still_in_flight() -> None:
    played, _ = play(Client(scripted()), idle=False)
    assert phase_end(played, "heal") == history.PhaseEnd(1000, "heal", False, "calls are still in flight after 2000 s")


# Drain ----------------------------------------------------------------------------------------------------------------


def test_drain_pops_by_wildcard_and_then_each_partition_by_name() -> None:
    client = Client(scripted())
    play(client, partitions=2)
    drain = [asked for asked in client.pops if asked["group"] == "A"]
    assert [asked["partition"] for asked in drain] == [None, "p0", "p1"]


def test_drain_pops_everything_under_a_lease() -> None:
    client = Client(scripted())
    play(client)
    asked = client.pops[0]
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
    assert (end.complete, end.why) == (False, "51 answers and no end; 50 were expected at most")


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
    played, summary = play(Client(scripted(NOBODY, NOBODY)))
    assert (phase_end(played, "drain").complete, summary.unreachable) == (True, "")


def test_a_broker_that_is_gone_ends_the_run() -> None:
    played, summary = play(Client(lambda _: NOBODY))
    why = "the broker cannot be reached: ConnectError: connection refused"
    assert (phase_end(played, "drain").why, phase_end(played, "audit").why, summary.unreachable) == (why, why, why)


# Audit ----------------------------------------------------------------------------------------------------------------


def audits(client: Client) -> list[dict[str, Any]]:
    return [asked for asked in client.pops if asked["group"].startswith("audit-")]


def test_audit_reads_all_from_the_start_with_a_fresh_group() -> None:
    client = Client(scripted())
    play(client)
    asked = audits(client)[0]
    assert (asked["group"], asked["mode"], asked["auto_ack"], asked["partitions"], asked["batch"]) == (
        "audit-1", "all", True, 0, 1000,
    )  # fmt: skip


def test_audit_reads_each_partition_by_name_as_well() -> None:
    client = Client(scripted())
    play(client, partitions=3)
    assert [asked["partition"] for asked in audits(client)] == [None, "p0", "p1", "p2"]


def test_an_unanswered_audit_starts_again_with_another_group() -> None:
    client = Client(lambda asked: GONE if asked["group"] == "audit-1" else EMPTY)
    played, _ = play(client)
    assert [asked["group"] for asked in audits(client)] == ["audit-1", "audit-2", "audit-2"]
    assert phase_end(played, "audit").complete


def test_an_audit_that_is_never_answered_is_not_complete() -> None:
    client = Client(lambda asked: GONE if asked["group"] != "A" else EMPTY)
    played, _ = play(client)
    end = phase_end(played, "audit")
    assert (end.complete, end.why) == (False, "pop not answered in 3 audits")


@pytest.mark.parametrize("name", ["schedule", "heal", "drain", "audit"])
def test_each_phase_says_that_it_is_complete(name: str) -> None:
    played, _ = play(Client(scripted()))
    assert phase_end(played, name).complete
