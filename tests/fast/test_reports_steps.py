"""A schedule in one line."""

from __future__ import annotations

import pytest

from contract.history import (
    AckCall,
    End,
    Header,
    History,
    Invoke,
    PopCall,
    PopResult,
    PushCall,
    PushResult,
    Return,
)
from contract.reports.steps import notation
from strategies.schedule import (
    Ack,
    AckItem,
    Advance,
    Configure,
    CrashConsumer,
    DelayAnswer,
    DelayRequest,
    DropConnection,
    Extend,
    Group,
    Item,
    KillBroker,
    LoseAnswer,
    LoseRequest,
    Parallel,
    PauseBroker,
    Pop,
    Push,
    RepeatRequest,
    RestartBroker,
    Schedule,
    StorageFault,
    StorageOutage,
    Storm,
)

GROUPS = (Group("G"), Group("H"), Group())


def one(*steps):
    return notation(Schedule(steps=tuple(steps), groups=GROUPS, partitions=2)).split(" | then drain", 1)[0]


def header():
    return Header(version=1, suite="0", target="t", profile="simulated", capabilities={}, queues=("q",), schedule=None)


def push(call, step, payloads, ids):
    count = len(payloads)
    request = PushCall("q", ("p0",) * count, (None,) * count, payloads)
    answer = PushResult(ids, ids, ("queued",) * count, (None,) * count)
    return [Invoke(call, call, "q/0", request, step), Return(call, call, "ok", 201, result=answer)]


def test_the_form_of_the_design():
    schedule = (
        Push((Item(), Item())),
        Pop(label=0, partition=0, batch=1),
        Ack(pop=0),
        Pop(label=1, group=1, partition=0),
    )
    assert one(*schedule) == "1 push p0 m1,m2 | 2 pop G p0 batch 1 | 3 ack G pop 0 message 1 | 4 pop H p0 all"


def test_no_steps():
    assert one() == "(no steps)"


def test_groups_that_only_the_drain_reads_are_shown():
    steps = (Push((Item(),)), LoseAnswer(Pop(label=0, group=1)))
    shown = notation(Schedule(steps=steps, groups=GROUPS))
    assert shown == "1 push p0 m1 | 2 lose answer (pop H * all) | then drain G, (no group)"


def test_items_of_one_partition_stand_together():
    assert one(Push((Item(0), Item(0), Item(1), Item(0)))) == "1 push p0 m1,m2 p1 m3 p0 m4"


def test_a_transaction_id_is_shown():
    assert one(Push((Item(key=3),))) == "1 push p0 m1(id 3)"


def test_the_group_without_a_name():
    assert one(Pop(label=0, group=2, batch=1)).startswith("1 pop (no group) *")


@pytest.mark.parametrize(
    ("pop", "words"),
    [
        (Pop(label=0, batch=5), "pop G * all"),
        (Pop(label=0, partitions=0), "pop G * all partitions any"),
        (Pop(label=0, partitions=2), "pop G * all partitions 2"),
        (Pop(label=0, partition=1, partitions=2), "pop G p1 all"),
        (Pop(label=0, lease_s=5), "pop G * all lease 5 s"),
        (Pop(label=0, lease_s=None), "pop G * all lease of the queue"),
        (Pop(label=0, auto_ack=True, lease_s=5), "pop G * all auto-ack"),
        (Pop(label=0, wait_ms=500), "pop G * all park 500 ms"),
        (Pop(label=0, mode="all"), "pop G * all mode all"),
        (Pop(label=0, mode="all", from_now=True), "pop G * all from now"),
        (Pop(label=0, worker=2), "pop G * all worker 2"),
    ],
)
def test_pops(pop, words):
    assert one(pop) == f"1 {words}"


@pytest.mark.parametrize(
    ("ack", "words"),
    [
        (Ack(pop=7), "ack (no group) pop 7 message 1"),
        (Ack(pop=0, lease="stale"), "ack H pop 0 message 1 with a stale lease"),
        (Ack(pop=0, lease="none"), "ack H pop 0 message 1 without lease"),
        (
            Ack(pop=0, items=(AckItem(0), AckItem(1, "failed"), AckItem(2)), batch=True),
            "ack H pop 0 message 1,3 failed pop 0 message 2",
        ),
    ],
)
def test_acks(ack, words):
    assert one(Pop(label=0, group=1), ack) == f"1 pop H * all | 2 {words}"


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (Extend(pop=1, seconds=3), "extend pop 1 by 3 s"),
        (Configure(lease_time_s=2, dead_letter_queue=False), "configure lease_time_s=2 dead_letter_queue=False"),
        (Advance(1500), "wait 1500 ms"),
        (CrashConsumer(group=1, worker=1), "crash consumer H 1"),
        (KillBroker(), "kill broker"),
        (KillBroker(200), "kill broker, down 200 ms"),
        (RestartBroker(200), "restart broker, down 200 ms"),
        (PauseBroker(300), "pause broker 300 ms"),
        (StorageFault(2), "fail 2 storage writes"),
        (StorageOutage(700), "storage away 700 ms"),
        (Storm(kill_at=50), "storm of 200 pushes by 2 over 1 partitions, 1 consumers of G, kill at 50 %"),
    ],
)
def test_steps_without_messages(step, words):
    assert one(step) == f"1 {words}"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (LoseRequest, "lose request"),
        (LoseAnswer, "lose answer"),
        (DelayRequest, "delay request 1000 ms"),
        (DelayAnswer, "delay answer 1000 ms"),
        (RepeatRequest, "send twice, 0 ms apart"),
        (DropConnection, "leave after 5 ms"),
    ],
)
def test_faults_stand_around_their_request(fault, words):
    assert one(fault(Push((Item(),)))) == f"1 {words} (push p0 m1)"


def test_lanes_run_at_once():
    lanes = Parallel(((Push((Item(),)), Advance(5)), (LoseAnswer(Pop(label=0)),)))
    assert one(lanes) == "1 at once { push p0 m1, wait 5 ms || lose answer (pop G * all) }"


def test_a_pushed_item_inside_a_fault_counts_for_all():
    assert one(LoseAnswer(Push((Item(), Item()))), Pop(label=0, batch=1)).endswith("batch 1")


def test_messages_have_the_names_of_the_history():
    steps = (Push((Item(), Item())), Pop(label=0), Ack(pop=0, items=(AckItem(1),)))
    schedule = Schedule(steps=steps, groups=GROUPS[:1])
    popped = PopResult("L", ("a", "b"), ("a", "b"), ("p0", "p0"), ("1", "1"), ("L", "L"), ("1", "2"), (1, 1), (0, 1))
    acked = AckCall("q", "G", False, ("p0",), ("1",), ("b",), ("b",), ("L",), ("completed",))
    events = [
        *push(1, "1", ("1", "2"), ("a", "b")),
        Invoke(2, 2, "G/0", PopCall("q", "G"), "2"),
        Return(2, 2, "ok", 200, result=popped),
        Invoke(3, 3, "G/0", acked, "3"),
        End(4),
    ]
    assert notation(schedule, History(header(), tuple(events))).endswith("3 ack G m2")


def test_an_ack_of_a_message_that_nobody_knows():
    schedule = Schedule(steps=(Pop(label=0), Ack(pop=0)), groups=GROUPS[:1])
    acked = AckCall("q", "G", False, ("p0",), ("1",), ("x",), ("x",), ("L",), ("completed",))
    events = (Invoke(1, 1, "G/0", acked, "2"), End(2))
    assert notation(schedule, History(header(), events)).endswith("2 ack G m?")


def test_a_step_that_was_a_no_op_says_what_it_was_meant_to_do():
    schedule = Schedule(steps=(Pop(label=0), Ack(pop=0)), groups=GROUPS[:1])
    assert notation(schedule, History(header(), (End(1),))).endswith("2 ack G pop 0 message 1")
