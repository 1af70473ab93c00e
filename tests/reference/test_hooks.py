"""Commands that stop and start a broker's storage, or the broker: outages that are survived, found out, cleaned up."""

from __future__ import annotations

import dataclasses
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from contract import cli, history, replay_file
from contract import hooks as hooks_module
from contract.errors import CouldNotJudge
from contract.explore import explore, features_of
from contract.finding import Found, with_faults_of_others
from contract.history import Fault, Invoke, PhaseEnd, PushResult, Return
from contract.hooks import Hooks
from contract.judge import judge
from contract.profile import REFERENCE
from contract.targets import Command, Url
from contract.targets import url as url_module
from contract.targets.process import free_port
from strategies import schedule as s

ROOT = Path(__file__).parents[2]
BROKER = Path(__file__).with_name("spooling_broker.py")
GROUPS = (s.Group("G", "all"), s.Group("H"))
PUSH = s.Push((s.Item(), s.Item()))
OUTAGE = s.Parallel(((s.StorageOutage(300),), (s.Advance(150), PUSH, s.Pop(1), s.Pop(2, partition=0), PUSH)))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes find the broker's code; it is at rest soon, and its spool is empty soon after an outage."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    changed = msgspec.structs.replace(
        REFERENCE, late_effect_s=0.2, wildcard_settle_s=0.1, named_settle_s=0.1, storage_settle_s=0.1, spool_s=0.5
    )
    monkeypatch.setattr(url_module, "for_version", lambda _: changed)
    monkeypatch.setattr("contract.explore.STORMS", 0)


def storage_hooks(away: Path) -> Hooks:
    """Commands that make the file that says that the storage is away, and remove it."""
    place = shlex.quote(str(away))
    return Hooks(storage_stop_cmd=f"touch {place}", storage_start_cmd=f"rm {place}")


@pytest.fixture
def away(tmp_path: Path) -> Path:
    return tmp_path / "away"


@pytest.fixture
def target(away: Path) -> Iterator[Command]:
    command = shlex.join([sys.executable, str(BROKER), "PORT", "DATA", str(away)])
    target = Command(_placed(command), lanes=8, hooks=storage_hooks(away))
    yield target
    target.close()


def _placed(command: str) -> str:
    return command.replace("PORT", "{port}").replace("DATA", "{data}")


def of(played: history.History, kind: type) -> list[Any]:
    return [event for event in played.events if isinstance(event, kind)]


def whats(played: history.History) -> list[str]:
    return [fault.what for fault in of(played, Fault)]


def statuses(played: history.History) -> list[str]:
    results = [event.result for event in of(played, Return) if isinstance(event.result, PushResult)]
    return [status for result in results for status in result.statuses]


def failed(played: history.History, target: Url) -> tuple[str, ...]:
    return judge(played, target.profile).failed


# Outages --------------------------------------------------------------------------------------------------------------


def test_an_outage_is_played_while_others_call(target: Command) -> None:
    played = target.play(s.Schedule((PUSH, OUTAGE, PUSH), groups=GROUPS))
    assert whats(played) == ["storage-stop", "storage-start"]
    assert statuses(played).count("buffered") == 4
    assert failed(played, target) == ()
    assert all(end.complete for end in of(played, PhaseEnd))


def test_what_was_spooled_is_stored_before_the_audit(target: Command) -> None:
    played = target.play(s.Schedule((OUTAGE,), groups=GROUPS))
    stored = judge(played, target.profile)["push/stored-is-delivered"]
    assert stored.compared >= 4


def test_a_broker_that_forgets_what_it_spooled_is_found_out(away: Path) -> None:
    command = shlex.join([sys.executable, str(BROKER), "PORT", "DATA", str(away), "lossy"])
    target = Command(_placed(command), hooks=storage_hooks(away))
    try:
        played = target.play(s.Schedule((PUSH, OUTAGE), groups=GROUPS))
        assert "push/stored-is-delivered" in failed(played, target)
    finally:
        target.close()


def test_an_outage_stands_in_the_history_of_every_lane(target: Command) -> None:
    waiting = s.Schedule((PUSH, s.Advance(1500), PUSH), groups=GROUPS)
    histories = target.play_many([s.Schedule((OUTAGE,), groups=GROUPS), waiting])
    assert whats(histories[1]) == ["storage-stop", "storage-start"]
    assert {fault.detail for fault in of(histories[1], Fault)} == {history.BY_ANOTHER_LANE}
    alone = with_faults_of_others(Found(waiting, histories[1], judge(histories[1], target.profile), 0.0))
    assert any(isinstance(step, s.StorageOutage) and step.ms >= 300 for step in alone.steps)


def test_a_kill_during_an_outage_waits_for_the_storage(target: Command) -> None:
    both = s.Parallel(((s.StorageOutage(500),), (s.Advance(100), s.KillBroker(), PUSH)))
    played = target.play(s.Schedule((PUSH, both), groups=GROUPS))
    assert whats(played)[:2] == ["storage-stop", "kill"]
    assert sorted(whats(played)[2:]) == [
        "start",
        "storage-start",
    ]  # the broker may be up before the storage is seen to work
    assert failed(played, target) == ()


def test_a_second_outage_meanwhile_does_nothing(target: Command) -> None:
    both = s.Parallel(((s.StorageOutage(400),), (s.Advance(100), s.StorageOutage(100))))
    played = target.play(s.Schedule((both,), groups=GROUPS))
    assert whats(played) == ["storage-stop", "storage-start"]


def test_a_correct_broker_that_spools_stays_clean(target: Command) -> None:
    often = dataclasses.replace(features_of(target), broker_faults_percent=40)
    exploration = explore(target, seed=5, schedules=24, max_time_s=60, features=often)
    assert exploration.failures == ()
    assert exploration.situations["call while the storage was away"]


def test_without_commands_there_is_no_outage(away: Path) -> None:
    target = Command(_placed(shlex.join([sys.executable, str(BROKER), "PORT", "DATA", str(away)])))
    try:
        assert not target.can("storage-outage")
    finally:
        target.close()


# A broker at a URL ----------------------------------------------------------------------------------------------------

KEEPER = """
import os, signal, subprocess, sys, time, urllib.request
word, place, port = sys.argv[1:4]
if word == "kill":
    os.kill(int(open(place + "/pid").read()), signal.SIGKILL)
    sys.exit()
log = open(place + "/log", "ab")
words = [sys.executable, "-m", "reference_broker", "--data", place + "/data", "--port", port]
process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
open(place + "/pid", "w").write(str(process.pid))
for _ in range(200):
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
        sys.exit()
    except OSError:
        time.sleep(0.05)
sys.exit(1)
"""


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Url]:
    """A reference broker at a URL, with commands that kill and start it."""
    port = str(free_port())
    kill, start = (shlex.join([sys.executable, "-c", KEEPER, word, str(tmp_path), port]) for word in ("kill", "start"))
    subprocess.run(shlex.split(start), check=True)
    try:
        yield Url(f"http://127.0.0.1:{port}", hooks=Hooks(broker_kill_cmd=kill, broker_start_cmd=start))
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)


def test_a_broker_at_a_url_is_killed_and_started_by_commands(kept: Url) -> None:
    assert (kept.can("kill-broker"), kept.can("pause-broker")) == (True, False)
    played = kept.play(s.Schedule((PUSH, s.Pop(1), s.KillBroker(100), PUSH), groups=GROUPS))
    assert whats(played) == ["kill", "start"]
    assert statuses(played) == ["queued"] * 4
    assert failed(played, kept) == ()


# Commands that go wrong -----------------------------------------------------------------------------------------------


def unjudged(target: Url, tmp_path: Path) -> str:
    with pytest.raises(CouldNotJudge) as caught:
        target.play(s.Schedule((PUSH, OUTAGE, PUSH), groups=GROUPS), path=tmp_path / "1.jsonl")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def hooked(target: Command, **commands: str) -> Command:
    """The same target with other commands."""
    target.storage = hooks_module.storage_switch(Hooks(**commands))
    return target


def test_a_stop_that_fails_ends_the_run_with_its_last_words(target: Command, tmp_path: Path, away: Path) -> None:
    stop = shlex.join([sys.executable, "-c", "import sys; sys.exit('no such server')"])
    text = unjudged(hooked(target, storage_stop_cmd=stop, storage_start_cmd=f"touch {away}.started"), tmp_path)
    assert text.startswith("--storage-stop-cmd ")
    assert text.endswith("failed with exit code 1 (it said: no such server); see why and run again")
    assert [event for event in history.read(tmp_path / "1.jsonl").events if isinstance(event, Invoke)]
    assert Path(f"{away}.started").exists()


def test_a_start_that_fails_ends_the_run(target: Command, tmp_path: Path, away: Path) -> None:
    text = unjudged(hooked(target, storage_stop_cmd=f"touch {away}", storage_start_cmd="false"), tmp_path)
    assert text == "--storage-start-cmd 'false' failed with exit code 1 (it said nothing); see why and run again"
    assert target.left_stopped == ["storage"]


def test_a_command_that_never_ends_is_ended(target: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks_module, "LIMIT_S", 0.2)
    text = unjudged(hooked(target, storage_stop_cmd="sleep 60", storage_start_cmd="true"), tmp_path)
    assert text == "--storage-stop-cmd 'sleep 60' was not done after 0.2 s (it said nothing); see why and run again"


def test_a_command_that_is_not_there_ends_the_run(target: Command, tmp_path: Path) -> None:
    text = unjudged(hooked(target, storage_stop_cmd="no-such-program x", storage_start_cmd="true"), tmp_path)
    assert "--storage-stop-cmd 'no-such-program x' cannot be run: No such file or directory" in text


def test_a_storage_that_does_not_come_back_ends_the_run(
    target: Command, tmp_path: Path, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contract.targets.control.BACK_LIMIT_S", 0.3)
    text = unjudged(hooked(target, storage_stop_cmd=f"touch {away}", storage_start_cmd="true"), tmp_path)
    assert text.startswith("the broker does not work 0.3 s after its storage was started")


INTERRUPTED = """
import sys
from pathlib import Path
from contract.hooks import Hooks
from contract.targets import Command
from strategies import schedule as s

command, place, away = sys.argv[1:]
target = Command(command, hooks=Hooks(storage_stop_cmd=f"touch {away}", storage_start_cmd=f"rm {away}"))
target.probe()
outage = s.Parallel(((s.StorageOutage(60_000),), (s.Push((s.Item(),)),)))
print("playing", flush=True)
target.play_many([s.Schedule((outage,))], paths=[Path(place)])
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_leaves_no_storage_stopped(tmp_path: Path, away: Path, end: signal.Signals) -> None:
    command = _placed(shlex.join([sys.executable, str(BROKER), "PORT", "DATA", str(away)]))
    words = [sys.executable, "-c", INTERRUPTED, command, str(tmp_path / "1.jsonl"), str(away)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(200):
            if away.exists():
                break
            time.sleep(0.05)
        time.sleep(0.2)
        process.send_signal(end)
        assert process.wait(20) != 0
    assert not away.exists()
    kept = history.read(tmp_path / "1.jsonl")
    assert kept.cut
    assert whats(kept) == ["storage-stop"]


# The command line -----------------------------------------------------------------------------------------------------


def test_the_command_line_plays_outages_and_says_how_to_play_again(
    tmp_path: Path, away: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    schedule = s.Schedule((PUSH, OUTAGE), groups=GROUPS)
    kept = replay_file.Replay(1, "0", "push/stored-is-delivered", "", "a broker", 1, "", "", schedule)
    path = replay_file.write(kept, tmp_path)
    broker = _placed(shlex.join([sys.executable, str(BROKER), "PORT", "DATA", str(away), "lossy"]))
    given = ["--broker-cmd", broker, "--storage-stop-cmd", f"touch {away}", "--storage-start-cmd", f"rm {away}"]
    code = cli.exit_code(["replay", str(path), *given, "--tries", "1"])
    said = capsys.readouterr().out
    assert code == 1
    assert "storage away" in said
    again = said.replace("\n", " ")
    assert "--storage-stop-cmd" in again
    assert f"rm {away}" in again


def test_the_command_line_says_what_it_left_stopped(
    tmp_path: Path, away: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = replay_file.Replay(1, "0", "order/push-order", "", "", 1, "", "", s.Schedule((OUTAGE,), groups=GROUPS))
    replay_file.write(kept, tmp_path / "failures")
    broker = _placed(shlex.join([sys.executable, str(BROKER), "PORT", "DATA", str(away)]))
    given = ["--broker-cmd", broker, "--storage-stop-cmd", f"touch {away}", "--storage-start-cmd", "false"]
    assert cli.exit_code(["run", *given, "--schedules", "1", "--history-dir", "kept"]) == 2
    complaints = capsys.readouterr().err.splitlines()
    assert complaints == [
        "broker-contract: --storage-start-cmd 'false' failed with exit code 1 (it said nothing); see why and run again",
        "broker-contract: the storage may still be stopped; start it by hand",
    ]
    assert whats(history.read(tmp_path / "kept" / "1.jsonl")) == ["storage-stop"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--storage-stop-cmd", "x"], "--storage-stop-cmd 'x' needs --storage-start-cmd beside it"),
        (["--storage-start-cmd", "x"], "--storage-start-cmd 'x' needs --storage-stop-cmd beside it"),
        (["--broker-kill-cmd", "x"], "--broker-kill-cmd 'x' needs --broker-start-cmd beside it"),
        (["--storage-stop-cmd", "'x", "--storage-start-cmd", "y"], "cannot be read (No closing quotation)"),
        (["--storage-stop-cmd", " ", "--storage-start-cmd", "y"], "--storage-stop-cmd ' ' is no command"),
    ],
)
def test_commands_that_cannot_be_used_are_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.exit_code(["run", "--broker-url", "http://127.0.0.1:9", *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "see broker-contract run --help" in said


def test_commands_for_a_broker_that_is_not_out_there_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.exit_code(["run", "--storage-stop-cmd", "x", "--storage-start-cmd", "y"]) == 2
    assert "--storage-stop-cmd 'x' is for a broker of --broker-url or --broker-cmd" in capsys.readouterr().err


def test_a_broker_that_the_suite_starts_needs_no_command_to_kill_it(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--broker-cmd", "b {port}", "--broker-kill-cmd", "x", "--broker-start-cmd", "y"]
    assert cli.exit_code(["run", *arguments]) == 2
    assert "--broker-kill-cmd 'x' is for a broker at a URL" in capsys.readouterr().err


def test_the_probing_pop_leaves_no_queue(target: Command) -> None:
    target.play(s.Schedule((OUTAGE,), groups=GROUPS))
    answer = httpx.get(f"http://127.0.0.1:{target.process.port}/api/v1/resources/queues")
    assert "nowhere" not in answer.text
