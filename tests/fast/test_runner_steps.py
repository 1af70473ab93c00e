"""What the runner makes of each step: requests, references, no-ops. Played against a scripted client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from client import AckedItem, AckItem, Call, Done, ExtendAnswer, Message, Outcome, PopAnswer, PushedItem, PushItem
from contract import history
from contract.profile import SIMULATED
from contract.runner import World, run_schedule
from contract.targets.virtual_time import VirtualLoop, run
from strategies import schedule as s

OK = Outcome.OK


def messages(*numbers: int, lease: str = "L1", partition: str = "p0") -> PopAnswer:
    return PopAnswer(
        lease,
        tuple(
            Message(f"m{number}", f"t{number}", partition, f"id-{partition}", lease, b'{"n":%d}' % number)
            for number in numbers
        ),
    )


class ScriptedClient:
    """Answers pops from a list, everything else with success; remembers what it was asked."""

    def __init__(self, *pops: PopAnswer | Call[Any], pop_takes_s: float = 0.0) -> None:
        self.pops = list(pops)
        self.pop_takes_s = pop_takes_s
        self.sent: list[tuple[str, Any]] = []

    async def push(self, items: Sequence[PushItem], *, extensions: Mapping[str, Any]) -> Call[Any]:
        self.sent.append(("push", tuple(items)))
        await asyncio.sleep(0)
        return Call(OK, 201, "", tuple(PushedItem(f"m{index}", "t", "queued", index) for index in range(len(items))))

    async def pop(self, queue: str, *, extensions: Mapping[str, Any], **asked: Any) -> Call[Any]:
        self.sent.append(("pop", asked))
        await asyncio.sleep(self.pop_takes_s)
        answer = self.pops.pop(0) if self.pops else PopAnswer()
        return answer if isinstance(answer, Call) else Call(OK, 200, "", answer)

    async def ack(self, item: AckItem, *, group: str, extensions: Mapping[str, Any]) -> Call[Any]:
        self.sent.append(("ack", (group, (item,))))
        return Call(OK, 200, "", (AckedItem(True),))

    async def ack_batch(self, items: Sequence[AckItem], *, group: str, extensions: Mapping[str, Any]) -> Call[Any]:
        self.sent.append(("ack_batch", (group, tuple(items))))
        return Call(OK, 200, "", (AckedItem(True),) * len(items))

    async def extend(self, lease_id: str, *, seconds: int, extensions: Mapping[str, Any]) -> Call[Any]:
        self.sent.append(("extend", (lease_id, seconds)))
        return Call(OK, 200, "", ExtendAnswer(True, 1))

    async def configure(self, queue: str, options: Mapping[str, object], *, extensions: Mapping[str, Any]) -> Call[Any]:
        self.sent.append(("configure", dict(options)))
        return Call(OK, 200, "", Done())

    async def seek(self, queue: str, group: str, *, extensions: Mapping[str, Any], **asked: Any) -> Call[Any]:
        self.sent.append(("seek", (group, asked)))
        return Call(OK, 200, "", Done())

    def only(self, *kinds: str) -> list[Any]:
        return [asked for kind, asked in self.sent if kind in kinds]


async def _always_idle(_: float) -> bool:
    return True


def play(
    client: ScriptedClient,
    *steps: s.Step,
    groups: tuple[s.Group, ...] = (s.Group("A", "all"), s.Group("B")),
    partitions: int = 2,
    idle: Callable[[float], Any] = _always_idle,
) -> history.History:
    """The history of the steps; what follows them is cut off."""
    schedule = s.Schedule(tuple(steps), partitions, groups)
    recorder = history.Recorder(history.Header(1, "0", "scripted", "simulated", {}, ("q",)))

    async def main(loop: VirtualLoop) -> None:
        world = World(
            client=lambda _: client,  # type: ignore[arg-type, return-value]
            queue="q",
            groups=tuple(group.name for group in groups),
            audit_group="audit-",
            now_us=lambda: loop.now_us,
            idle=idle,
            profile=SIMULATED,
        )
        await run_schedule(world, schedule, recorder)

    run(main)
    whole = recorder.history()
    end = next(index for index, event in enumerate(whole.events) if isinstance(event, history.PhaseEnd))
    return history.History(whole.header, whole.events[:end])


def invokes(played: history.History) -> list[history.Invoke]:
    return [event for event in played.events if isinstance(event, history.Invoke)]


def notes(played: history.History) -> list[tuple[str, str]]:
    return [(event.step, event.text) for event in played.events if isinstance(event, history.Note)]


def ack_of(*steps: s.Step, pops: Sequence[PopAnswer] = (messages(1, 2, 3),)) -> history.AckCall:
    request = invokes(play(ScriptedClient(*pops), *steps))[-1].request
    assert isinstance(request, history.AckCall)
    return request


# Push -----------------------------------------------------------------------------------------------------------------


def test_push_sends_what_it_records() -> None:
    client = ScriptedClient()
    request = invokes(play(client, s.Push((s.Item(1, key=3), s.Item()))))[0].request
    assert request == history.PushCall("q", ("p1", "p0"), ("t3", None), ('{"n":1}', '{"n":2}'))
    assert client.only("push") == [
        (PushItem("q", "p1", b'{"n":1}', "t3"), PushItem("q", "p0", b'{"n":2}', None)),
    ]


def test_partitions_are_taken_modulo_their_number() -> None:
    request = invokes(play(ScriptedClient(), s.Push((s.Item(3),)), partitions=2))[0].request
    assert isinstance(request, history.PushCall)
    assert request.partitions == ("p1",)


# Pop ------------------------------------------------------------------------------------------------------------------


def test_pop_takes_the_mode_of_its_group() -> None:
    request = invokes(play(ScriptedClient(), s.Pop(1, group=0)))[0].request
    assert request == history.PopCall("q", "A", None, 10, 1, 2, None, False, "all", None)


def test_pop_may_name_another_mode() -> None:
    request = invokes(play(ScriptedClient(), s.Pop(1, group=0, mode="new")))[0].request
    assert isinstance(request, history.PopCall)
    assert request.mode == "new"


def test_queue_mode_names_no_group_and_no_mode() -> None:
    client = ScriptedClient()
    play(client, s.Pop(1, mode="all", from_now=True), groups=(s.Group("", "all"),))
    asked = client.only("pop")[0]
    assert (asked["group"], asked["mode"], asked["from_"]) == ("", None, None)


def test_a_named_pop_sends_no_cap_of_partitions() -> None:
    request = invokes(play(ScriptedClient(), s.Pop(1, partition=1)))[0].request
    assert isinstance(request, history.PopCall)
    assert (request.partition, request.partitions) == ("p1", None)


def test_a_pop_that_does_not_park_sends_no_wait() -> None:
    request = invokes(play(ScriptedClient(), s.Pop(1, wait_ms=0)))[0].request
    assert isinstance(request, history.PopCall)
    assert request.wait_ms is None


def test_from_now_is_sent_as_such() -> None:
    request = invokes(play(ScriptedClient(), s.Pop(1, from_now=True)))[0].request
    assert isinstance(request, history.PopCall)
    assert request.from_ == "now"


def test_what_a_pop_gave_is_recorded() -> None:
    played = play(ScriptedClient(messages(1)), s.Pop(1))
    result = next(event.result for event in played.events if isinstance(event, history.Return))
    assert result == history.PopResult(
        "L1", ("m1",), ("t1",), ("p0",), ("id-p0",), ("L1",), ('{"n":1}',), (None,), (None,)
    )


# Ack ------------------------------------------------------------------------------------------------------------------


def test_ack_names_the_message_and_its_lease() -> None:
    assert ack_of(s.Pop(1), s.Ack(1, (s.AckItem(1),))) == history.AckCall(
        "q", "A", False, ("p0",), ("id-p0",), ("t2",), ("m2",), ("L1",), ("completed",)
    )


def test_a_single_ack_sends_its_first_item_to_the_single_endpoint() -> None:
    client = ScriptedClient(messages(1, 2))
    play(client, s.Pop(1), s.Ack(1, (s.AckItem(0, "retry"), s.AckItem(1))))
    assert client.only("ack")[0] == ("A", (AckItem("t1", "id-p0", "retry", "L1"),))


def test_a_batch_ack_sends_all_items() -> None:
    request = ack_of(s.Pop(1), s.Ack(1, (s.AckItem(2, "failed"), s.AckItem(0)), batch=True))
    assert (request.message_ids, request.statuses) == (("m3", "m1"), ("failed", "completed"))


def test_an_index_beyond_the_batch_means_the_last_message() -> None:
    assert ack_of(s.Pop(1), s.Ack(1, (s.AckItem(9),))).message_ids == ("m3",)


def test_what_is_beyond_the_batch_is_sent_once() -> None:
    request = ack_of(s.Pop(1), s.Ack(1, (s.AckItem(2), s.AckItem(5), s.AckItem(9)), batch=True))
    assert request.message_ids == ("m3",)


def test_what_is_named_twice_is_sent_twice() -> None:
    request = ack_of(s.Pop(1), s.Ack(1, (s.AckItem(0), s.AckItem(0, "dlq")), batch=True))
    assert request.message_ids == ("m1", "m1")


def test_lease_none_sends_no_lease() -> None:
    assert ack_of(s.Pop(1), s.Ack(1, lease="none")).lease_ids == (None,)


def test_a_stale_lease_is_an_older_one_of_that_group_and_partition() -> None:
    request = ack_of(
        s.Pop(1), s.Pop(2), s.Ack(2, lease="stale"), pops=(messages(1, lease="old"), messages(1, lease="new"))
    )
    assert request.lease_ids == ("old",)


def test_a_lease_of_another_partition_is_not_stale_here() -> None:
    pops = (messages(1, lease="other", partition="p1"), messages(1, lease="new"))
    assert ack_of(s.Pop(1), s.Pop(2), s.Ack(2, lease="stale"), pops=pops).lease_ids != ("other",)


def test_a_lease_of_another_group_is_not_stale_here() -> None:
    pops = (messages(1, lease="other"), messages(1, lease="new"))
    assert ack_of(s.Pop(1, group=1), s.Pop(2), s.Ack(2, lease="stale"), pops=pops).lease_ids != ("other",)


def test_a_made_up_lease_is_a_uuid() -> None:
    lease_id = ack_of(s.Pop(1), s.Ack(1, lease="stale")).lease_ids[0]
    assert UUID(lease_id).version == 4


def test_a_made_up_lease_is_the_same_each_time() -> None:
    steps = (s.Pop(1), s.Ack(1, lease="stale"))
    assert ack_of(*steps).lease_ids == ack_of(*steps).lease_ids


def test_a_message_without_lease_is_acked_without() -> None:
    assert ack_of(s.Pop(1, auto_ack=True), s.Ack(1), pops=(messages(1, lease=""),)).lease_ids == (None,)


def test_an_ack_is_sent_by_the_worker_that_popped() -> None:
    played = play(ScriptedClient(messages(1)), s.Pop(1, group=1, worker=2), s.Ack(1))
    assert [event.worker for event in invokes(played)] == ["B/2", "B/2"]


# No-ops ---------------------------------------------------------------------------------------------------------------


def test_an_ack_of_a_pop_that_never_was_is_a_no_op() -> None:
    played = play(ScriptedClient(), s.Ack(7))
    assert notes(played) == [("1", "no-op: pop 7 left nothing to ack")]


def test_an_ack_of_an_empty_pop_is_a_no_op() -> None:
    played = play(ScriptedClient(), s.Pop(1), s.Ack(1))
    assert notes(played) == [("2", "no-op: pop 1 left nothing to ack")]


def test_an_extend_without_a_lease_is_a_no_op() -> None:
    played = play(ScriptedClient(), s.Pop(1), s.Extend(1))
    assert notes(played) == [("2", "no-op: pop 1 left nothing to extend")]


def test_an_unknown_pop_leaves_nothing_to_ack() -> None:
    played = play(ScriptedClient(Call(Outcome.UNKNOWN, None, "gone")), s.Pop(1), s.Ack(1))
    assert notes(played) == [("2", "no-op: pop 1 left nothing to ack")]


def test_a_crashed_consumer_forgets_its_batches() -> None:
    played = play(ScriptedClient(messages(1)), s.Pop(1), s.CrashConsumer(0, 0), s.Ack(1))
    assert notes(played) == [("3", "no-op: pop 1 left nothing to ack")]


def test_a_crashed_consumer_is_recorded() -> None:
    played = play(ScriptedClient(messages(1)), s.Pop(1), s.CrashConsumer(1, 2))
    faults = [event for event in played.events if isinstance(event, history.Fault)]
    assert [(fault.what, fault.detail, fault.step) for fault in faults] == [("crash-consumer", "B/2", "2")]


def test_another_worker_keeps_its_batches_in_a_crash() -> None:
    played = play(ScriptedClient(messages(1)), s.Pop(1, worker=1), s.CrashConsumer(0, 0), s.Ack(1))
    assert notes(played) == []


def test_a_consumer_that_crashes_while_it_pops_gets_nothing() -> None:
    lanes = s.Parallel(((s.Pop(1),), (s.Advance(500), s.CrashConsumer(0, 0))))
    played = play(ScriptedClient(messages(1), pop_takes_s=1.0), lanes, s.Ack(1))
    assert notes(played) == [("2", "no-op: pop 1 left nothing to ack")]


def test_a_broker_fault_that_cannot_be_is_noted() -> None:
    played = play(ScriptedClient(), s.KillBroker())
    assert notes(played) == [("1", "not supported: kill-broker")]


def test_a_storm_pushes_as_often_as_it_says() -> None:
    played = play(ScriptedClient(), s.Advance(1), s.Storm(pushers=2, operations=5))
    pushes = [event for event in invokes(played) if isinstance(event.request, history.PushCall)]
    assert [event.step for event in pushes] == ["2"] * 5
    assert {event.worker for event in pushes} == {"push/0", "push/1"}


def test_the_pushers_of_a_storm_stay_side_by_side_on_one_partition() -> None:
    played = play(ScriptedClient(), s.Storm(pushers=2, operations=6, partitions=2))
    pushes = [event.request for event in invokes(played) if isinstance(event.request, history.PushCall)]
    assert [request.partitions for request in pushes] == [("p0",)] * 2 + [("p1",)] * 2 + [("p0",)] * 2


def test_the_consumers_of_a_storm_ack_what_they_got() -> None:
    played = play(ScriptedClient(messages(1, 2)), s.Storm(operations=5))
    acks = [event.request for event in invokes(played) if isinstance(event.request, history.AckCall)]
    assert [(request.message_ids, request.statuses) for request in acks] == [(("m1", "m2"), ("completed",) * 2)]


def test_a_storm_ends_with_an_empty_answer_for_each_consumer() -> None:
    played = play(ScriptedClient(), s.Storm(operations=5, consumers=3))
    last = {event.worker: event for event in invokes(played) if isinstance(event.request, history.PopCall)}
    returned = {event.call: event.result for event in played.events if isinstance(event, history.Return)}
    assert {worker: returned[event.call] for worker, event in last.items()} == {
        f"A/{number}": history.PopResult() for number in range(3)
    }


def test_a_storm_on_a_broker_that_gives_the_same_for_ever_is_stopped() -> None:
    client = ScriptedClient(*[messages(1, 2)] * 1000)
    played = play(client, s.Storm(operations=5))
    assert notes(played) == [("1", "the consumers were stopped after 116 deliveries")]
    assert len(client.only("push")) == 5


def test_a_kill_in_a_storm_is_noted_where_the_broker_cannot_be_killed() -> None:
    assert notes(play(ScriptedClient(), s.Storm(operations=5, kill_at=50))) == [("1", "not supported: kill-broker")]


# Others ---------------------------------------------------------------------------------------------------------------


def test_extend_names_the_lease_of_the_pop() -> None:
    client = ScriptedClient(messages(1))
    play(client, s.Pop(1), s.Extend(1, seconds=7))
    assert client.only("extend") == [("L1", 7)]


def test_configure_sends_the_named_options_only() -> None:
    client = ScriptedClient()
    play(client, s.Configure(lease_time_s=3, dead_letter_queue=False))
    assert client.only("configure") == [{"leaseTime": 3, "deadLetterQueue": False}]


def test_seek_names_its_group_and_partition() -> None:
    client = ScriptedClient()
    play(client, s.Seek(group=0, partition=0), s.Seek(to_end=True))
    (group, back), (_, end) = client.only("seek")
    assert group
    assert (back["partition"], back["to_end"], back["timestamp"]) == ("p0", False, "1970-01-01T00:00:00Z")
    assert (end["partition"], end["to_end"], end["timestamp"]) == (None, True, None)


def test_advance_lets_time_pass() -> None:
    played = play(ScriptedClient(), s.Push((s.Item(),)), s.Advance(1500), s.Push((s.Item(),)))
    assert [event.at_us for event in invokes(played)] == [0, 1_500_000]


def test_steps_are_numbered_from_one() -> None:
    played = play(ScriptedClient(), s.Push((s.Item(),)), s.Pop(1))
    assert [event.step for event in invokes(played)] == ["1", "2"]


def test_lanes_are_numbered_inside_their_step() -> None:
    lanes = s.Parallel(((s.Push((s.Item(),)), s.Pop(1)), (s.Pop(2),)))
    played = play(ScriptedClient(), s.Advance(1), lanes)
    assert sorted(event.step for event in invokes(played)) == ["2.1.1", "2.1.2", "2.2.1"]


def test_lanes_run_side_by_side() -> None:
    lanes = s.Parallel(((s.Pop(1),), (s.Pop(2),)))
    played = play(ScriptedClient(pop_takes_s=1.0), lanes)
    assert [event.at_us for event in invokes(played)] == [0, 0]


def test_steps_of_a_lane_follow_each_other() -> None:
    lanes = s.Parallel(((s.Pop(1), s.Pop(2)),))
    played = play(ScriptedClient(pop_takes_s=1.0), lanes)
    assert [event.at_us for event in invokes(played)] == [0, 1_000_000]


def test_queue_mode_workers_are_called_q() -> None:
    played = play(ScriptedClient(), s.Pop(1, worker=1), groups=(s.Group(),))
    assert invokes(played)[0].worker == "q/1"


def test_a_repetition_is_a_second_call_with_the_same_request() -> None:
    client = ScriptedClient()
    played = play(client, s.RepeatRequest(s.Push((s.Item(),)), ms=100), s.Advance(500))
    first, second = invokes(played)
    assert (first.request, second.request) == (second.request, first.request)
    assert (second.at_us, second.fault, second.step) == (100_000, "repeat-request", "1")


def test_the_step_after_a_repetition_does_not_wait_for_it() -> None:
    played = play(ScriptedClient(), s.RepeatRequest(s.Push((s.Item(),)), ms=100), s.Pop(1), s.Advance(500))
    assert [event.step for event in invokes(played)] == ["1", "2", "1"]


def test_a_fault_is_named_at_its_call() -> None:
    played = play(ScriptedClient(), s.LoseAnswer(s.Push((s.Item(),))))
    assert invokes(played)[0].fault == "lose-answer"
