"""The simulated target: bit-identical replay, what a kill does, what becomes of lost calls."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contract import history
from contract.history import EffectEnd, Fault, Invoke, Note, PhaseEnd, PopResult, PushResult, Return
from contract.judge import judge
from contract.payloads import PAYLOADS
from contract.targets import Simulated
from reference_broker import Engine
from strategies import schedule as s

ROOT = Path(__file__).parents[2]

PUSH = s.Push((s.Item(),))

RICH = s.Schedule(
    (
        s.Push((s.Item(0), s.Item(1, key=3), s.Item(0, payload=16)), jitter=4),
        s.Pop(1),
        s.Ack(1),
        s.LoseAnswer(s.Push((s.Item(),), jitter=9)),
        s.DelayRequest(s.Ack(1), ms=3000),
        s.Parallel(
            (
                (s.Pop(3, group=1, wait_ms=5000, jitter=5), s.Ack(3, lease="stale", jitter=6)),
                (s.Advance(500), s.Push((s.Item(1),), jitter=7)),
                (s.KillBroker(100), s.Push((s.Item(0),), jitter=8)),
                (s.DropConnection(s.Pop(5, wait_ms=2000), ms=100),),
            )
        ),
        s.RepeatRequest(s.Push((s.Item(0, key=3),)), ms=50),
        s.Extend(3),
        s.PauseBroker(700),
        s.RestartBroker(100),
    ),
    2,
    (s.Group("G", "all"), s.Group("H", "new")),
)


def digest(played: history.History) -> str:
    return hashlib.sha256(b"".join(history.to_lines(played))).hexdigest()


def play(*steps: s.Step, engine: type[Any] | None = None, **world: Any) -> history.History:
    return Simulated(engine).play(s.Schedule(steps, **world))


def of(played: history.History, kind: type) -> list[Any]:
    return [event for event in played.events if isinstance(event, kind)]


def call_at(played: history.History, step: str) -> int:
    return int(next(event.call for event in of(played, Invoke) if event.step == step))


def returned(played: history.History, step: str) -> Return:
    call = call_at(played, step)
    found: Return = next(event for event in of(played, Return) if event.call == call)
    return found


def ends(played: history.History, step: str) -> list[EffectEnd]:
    call = call_at(played, step)
    return [event for event in of(played, EffectEnd) if event.call == call]


def audited(played: history.History) -> list[str]:
    """Payloads that the audit read."""
    audits = {event.call for event in of(played, Invoke) if event.worker == "audit"}
    results = [event.result for event in of(played, Return) if event.call in audits]
    return [payload for result in results if isinstance(result, PopResult) for payload in result.payloads]


# Replay ---------------------------------------------------------------------------------------------------------------


def test_two_plays_are_equal_bit_by_bit() -> None:
    assert digest(Simulated().play(RICH, seed=5)) == digest(Simulated().play(RICH, seed=5))


def test_one_target_plays_again_as_before() -> None:
    target = Simulated()
    assert digest(target.play(RICH)) == digest(target.play(RICH))


def test_another_seed_gives_other_ids() -> None:
    assert digest(Simulated().play(RICH, seed=1)) != digest(Simulated().play(RICH, seed=2))


def test_an_ordinary_httpx_client_gives_the_same_history() -> None:
    assert Simulated(plain=True).play(RICH) == Simulated().play(RICH)


@pytest.mark.parametrize("hash_seed", ["0", "1", "4127"])
def test_another_process_gives_the_same_history(hash_seed: str, tmp_path: Path) -> None:
    schedule = tmp_path / "schedule.json"
    schedule.write_bytes(s.to_json(RICH))
    program = (
        "import sys, hashlib, pathlib; from contract import history; from contract.targets import Simulated; "
        "from strategies.schedule import from_json; "
        "played = Simulated().play(from_json(pathlib.Path(sys.argv[1]).read_bytes()), seed=5); "
        "print(hashlib.sha256(b''.join(history.to_lines(played))).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", program, str(schedule)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == (digest(Simulated().play(RICH, seed=5)), "")


def test_what_is_written_is_what_is_returned(tmp_path: Path) -> None:
    played = Simulated().play(RICH, path=tmp_path / "deep" / "history.jsonl")
    assert history.read(tmp_path / "deep" / "history.jsonl") == played


def test_many_schedules_are_played_in_order(tmp_path: Path) -> None:
    schedules = [s.Schedule((s.Advance(number),)) for number in (1, 2)]
    paths = [tmp_path / "1.jsonl", tmp_path / "2.jsonl"]
    played = Simulated().play_many(schedules, paths=paths)
    assert [found.header.schedule for found in played] == schedules
    assert [history.read(path) for path in paths] == played


def test_deleting_a_step_leaves_the_interleaving_of_the_others() -> None:
    race = s.Parallel(((s.Push((s.Item(0),), jitter=11),), (s.Push((s.Item(1),), jitter=12),)))
    with_step, without = play(PUSH, race, partitions=2), play(race, partitions=2)
    assert [returned(with_step, f"2.{lane}.1").at_us for lane in (1, 2)] == [
        returned(without, f"1.{lane}.1").at_us for lane in (1, 2)
    ]


# What is recorded -----------------------------------------------------------------------------------------------------


def test_every_history_can_be_read() -> None:
    played = Simulated().play(RICH)
    assert history.parse(history.to_lines(played)) == played


def test_a_run_is_recorded_to_its_end() -> None:
    played = Simulated().play(RICH)
    assert [(event.name, event.complete) for event in of(played, PhaseEnd)] == [
        ("schedule", True), ("heal", True), ("audit", True), ("drain", True),
    ]  # fmt: skip
    assert not played.cut


def test_the_audit_reads_what_was_pushed() -> None:
    played = play(s.Push((s.Item(0), s.Item(1))), PUSH, partitions=2)
    assert sorted(audited(played)) == ['{"n":1}', '{"n":2}', '{"n":3}']


def test_every_payload_comes_back_as_it_was_pushed() -> None:
    items = tuple(s.Item(0, payload=number) for number in range(len(PAYLOADS)))
    played = play(s.Push(items))
    sent = of(played, Invoke)[0].request.payloads
    assert audited(played) == [text.strip() for text in sent]


def test_the_header_says_what_was_played() -> None:
    header = Simulated().play(RICH, seed=9).header
    assert (header.schedule, header.seed, header.profile, header.queues) == (RICH, 9, "simulated", ("q",))


def test_an_audit_group_never_has_the_name_of_a_group() -> None:
    for push, number in ((PUSH, 0), (s.LoseAnswer(PUSH), 1)):
        played = play(push, groups=(s.Group("audit-1", "all"),))
        groups = {event.request.group for event in of(played, Invoke) if event.worker == "audit"}
        assert groups == {f"audit--{number}"}


# Lost calls -----------------------------------------------------------------------------------------------------------


def test_a_lost_answer_is_unknown_and_has_acted() -> None:
    played = play(s.LoseAnswer(PUSH))
    assert returned(played, "1").outcome == "unknown"
    assert audited(played) == ['{"n":1}']


def test_the_effect_of_a_lost_answer_ends_before_the_next_step() -> None:
    played = play(s.LoseAnswer(PUSH), PUSH)
    order = [(type(event).__name__, event.call) for event in played.events if isinstance(event, Invoke | EffectEnd)]
    assert order[:3] == [("Invoke", 1), ("EffectEnd", 1), ("Invoke", 2)]


def test_a_lost_request_never_acts() -> None:
    played = play(s.LoseRequest(PUSH))
    assert [end.acted for end in ends(played, "1")] == [False]
    assert audited(played) == []


def test_a_delayed_request_acts_later() -> None:
    played = play(s.DelayRequest(PUSH, ms=800))
    assert (returned(played, "1").at_us, ends(played, "1")[0].at_us) == (0, 800_000)
    assert audited(played) == ['{"n":1}']


def test_a_call_that_was_answered_has_no_effect_end() -> None:
    assert of(play(PUSH, s.Pop(1), s.Ack(1)), EffectEnd) == []


def test_a_repetition_is_a_call_of_its_own_whose_answer_nobody_sees() -> None:
    played = play(s.RepeatRequest(PUSH, ms=20))
    assert [event.outcome for event in of(played, Return)[:2]] == ["ok", "unknown"]
    assert audited(played) == ['{"n":1}', '{"n":1}']


def test_a_parked_pop_whose_client_left_takes_no_lease() -> None:
    played = play(s.DropConnection(s.Pop(1, wait_ms=5000), ms=100), PUSH, s.Pop(2))
    assert len(returned(played, "3").result.message_ids) == 1  # type: ignore[union-attr]


# Faults of the broker -------------------------------------------------------------------------------------------------


def test_what_was_answered_survives_a_kill() -> None:
    played = play(PUSH, s.KillBroker(), PUSH)
    assert audited(played) == ['{"n":1}', '{"n":2}']


def test_a_kill_is_recorded_with_its_start() -> None:
    played = play(s.KillBroker(250))
    assert [(event.what, event.at_us) for event in of(played, Fault)] == [("kill", 0), ("start", 250_000)]


def test_a_kill_breaks_the_connection_of_a_parked_pop() -> None:
    played = play(s.Parallel(((s.Pop(1, wait_ms=5000),), (s.Advance(300), s.KillBroker()))))
    answer = returned(played, "1.1.1")
    assert (answer.outcome, answer.at_us) == ("unknown", 300_000)


def test_a_kill_ends_the_effects_of_what_it_cut_off() -> None:
    played = play(s.Parallel(((s.Pop(1, wait_ms=5000),), (s.Advance(300), s.KillBroker()))))
    assert [(end.at_us, end.acted) for end in ends(played, "1.1.1")] == [(300_000, None)]


def test_while_the_broker_is_down_requests_are_refused() -> None:
    played = play(s.Parallel(((s.KillBroker(400),), (s.Advance(100), PUSH))))
    assert returned(played, "1.2.2").outcome == "refused"


def test_a_second_kill_of_a_dead_broker_is_a_no_op() -> None:
    played = play(s.Parallel(((s.KillBroker(400),), (s.Advance(100), s.KillBroker()))))
    assert [(note.step, note.text) for note in of(played, Note)] == [("1.2.2", "no-op: the broker is down")]


def test_a_restart_keeps_what_was_stored() -> None:
    played = play(PUSH, s.RestartBroker(100), PUSH)
    assert [event.what for event in of(played, Fault)] == ["stop", "start"]
    assert len(audited(played)) == 2


def test_a_paused_broker_answers_after_the_pause() -> None:
    played = play(s.Parallel(((s.PauseBroker(600),), (s.Advance(100), PUSH))))
    assert (returned(played, "1.2.2").outcome, returned(played, "1.2.2").at_us) == ("ok", 600_000)


def test_a_pause_ends_with_a_kill() -> None:
    played = play(s.Parallel(((s.PauseBroker(600),), (s.Advance(100), s.KillBroker(), PUSH))))
    assert (returned(played, "1.2.3").outcome, returned(played, "1.2.3").at_us) == ("ok", 100_000)


def test_a_storage_fault_makes_the_next_write_unknown_and_undone() -> None:
    played = play(s.StorageFault(1), PUSH, PUSH)
    assert [event.result.unknown_items for event in of(played, Return)[:2]] == [frozenset({0}), frozenset()]
    assert audited(played) == ['{"n":2}']


def test_an_item_whose_effect_is_open_has_an_effect_end() -> None:
    played = play(s.StorageFault(1), PUSH)
    assert [end.acted for end in ends(played, "2")] == [None]


def test_nothing_is_answered_for_certain_while_the_storage_is_away() -> None:
    outage = s.Parallel(((s.StorageOutage(1000),), (s.Advance(100), PUSH, s.Pop(1), s.Ack(0), s.Extend(0))))
    played = play(PUSH, s.Pop(0), outage, PUSH)
    assert [returned(played, f"3.2.{step}").status for step in (2, 3, 4, 5)] == [201, 500, 200, 500]
    assert returned(played, "3.2.2").result.unknown_items == {0}
    assert returned(played, "3.2.4").result.unknown_items == {0}
    assert audited(played) == ['{"n":1}', '{"n":3}']
    assert judge(played).failed == ()


def test_a_parked_pop_may_time_out_in_the_middle_of_an_outage() -> None:
    outage = s.Parallel(((s.Advance(1), s.StorageOutage(999)), (s.Pop(1, wait_ms=500),), (s.Pop(2, wait_ms=2000),)))
    played = play(outage)
    assert (returned(played, "1.2.1").status, returned(played, "1.3.1").status) == (204, 204)
    assert judge(played).failed == ()


def test_an_outage_goes_on_through_a_kill_of_the_broker() -> None:
    played = play(s.Parallel(((s.StorageOutage(1000),), (s.Advance(100), s.KillBroker(), PUSH))))
    assert [(fault.what, fault.at_us) for fault in of(played, Fault)] == [
        ("storage-stop", 0),
        ("kill", 100_000),
        ("storage-start", 1_000_000),
        ("start", 1_000_000),
    ]


def test_a_second_outage_meanwhile_is_noted() -> None:
    played = play(s.Parallel(((s.StorageOutage(1000),), (s.Advance(100), s.StorageOutage(10)))))
    assert [note.text for note in of(played, Note)] == ["no-op: the storage is away"]


@pytest.mark.parametrize(
    "fault",
    ["kill-broker", "restart-broker", "pause-broker", "storage-fault", "storage-outage", "lose-answer"],
)
def test_every_fault_happens_here(fault: str) -> None:
    assert Simulated().can(fault)


# Engines with defects -------------------------------------------------------------------------------------------------


class Forgetful(Engine):
    """Stores nothing, and says it did."""

    async def push(self, items: Any) -> Any:
        answer = await super().push(items)
        self.storage.execute("DELETE FROM messages")
        return answer


class Raising(Engine):
    """Fails in every push."""

    async def push(self, items: Any) -> Any:
        raise ValueError("a mistake")


class Hanging(Engine):
    """Never answers a push."""

    async def push(self, items: Any) -> Any:
        await asyncio.Event().wait()


def test_an_engine_takes_the_place_of_the_right_one() -> None:
    played = play(PUSH, engine=Forgetful)
    assert isinstance(returned(played, "1").result, PushResult)
    assert audited(played) == []


def test_the_engine_is_named_in_the_header() -> None:
    assert play(engine=Forgetful).header.target == "reference broker with Forgetful (simulated)"


def test_a_failing_engine_answers_500() -> None:
    assert returned(play(PUSH, engine=Raising), "1").status == 500


def test_a_call_that_never_ends_is_said_in_heal() -> None:
    played = play(PUSH, engine=Hanging)
    assert returned(played, "1").outcome == "unknown"
    heal = next(event for event in of(played, PhaseEnd) if event.name == "heal")
    assert heal.why == "calls are still in flight after 2000 s"


def test_a_simulated_hour_is_quick() -> None:
    played = play(PUSH, s.Pop(1, lease_s=3600), s.Advance(3_599_000))
    assert played.events[-1].at_us >= 3_600_000_000
