"""The command target: a broker process that is started, killed, paused and ended by the suite."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contract import explore as explore_module
from contract import history
from contract.cli import exit_code
from contract.errors import CouldNotJudge
from contract.explore import explore
from contract.finding import Found, with_faults_of_others
from contract.history import EffectEnd, Fault, Invoke, Note, PhaseEnd
from contract.judge import judge
from contract.profile import REFERENCE
from contract.targets import Command
from contract.targets import process as process_module
from contract.targets import url as url_module
from strategies import schedule as s

ROOT = Path(__file__).parents[2]
REFERENCE_COMMAND = f"{shlex.quote(sys.executable)} -m reference_broker --data {{data}} --port {{port}}"
GROUPS = (s.Group("G", "all"),)
PUSH = s.Push((s.Item(), s.Item()))
TAKE = s.Pop(9, lease_s=1)

# A server that answers every request in one way: `python -c SERVER PORT STATUS BODY`.
SERVER = (
    "import sys, http.server as h\n"
    "class H(h.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        self.send_response(int(sys.argv[2])); self.end_headers(); self.wfile.write(sys.argv[3].encode())\n"
    "    def log_message(self, *_): pass\n"
    "print('a strange server', flush=True)\n"
    "h.HTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()\n"
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes find the broker's code, and it is at rest soon after its last answer."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests" / "quality")]))
    changed = msgspec.structs.replace(REFERENCE, late_effect_s=0.2, wildcard_settle_s=0.1, named_settle_s=0.1)
    monkeypatch.setattr(url_module, "for_version", lambda _: changed)
    monkeypatch.setattr(explore_module, "STORMS", 0)  # they have a test of their own


@pytest.fixture
def target() -> Iterator[Command]:
    command = Command(REFERENCE_COMMAND, lanes=8)
    yield command
    command.close()


def python(code: str, *words: str) -> str:
    """A command that runs Python code."""
    return shlex.join([sys.executable, "-c", code, *words]).replace("'{port}'", "{port}").replace("'{data}'", "{data}")


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def of(played: history.History, kind: type) -> list[Any]:
    return [event for event in played.events if isinstance(event, kind)]


def whats(played: history.History) -> list[str]:
    return [fault.what for fault in of(played, Fault)]


def refused(command: str, **options: Any) -> str:
    """The one sentence with which a command is refused; nothing of it may be left."""
    try:
        target = Command(command, **options)
    except CouldNotJudge as error:
        return one_sentence(error)
    with pytest.raises(CouldNotJudge) as caught:
        target.probe()
    assert target.process.pid is None
    return one_sentence(caught.value)


def one_sentence(error: CouldNotJudge) -> str:
    assert "\n" not in str(error)
    return str(error)


# Its life -------------------------------------------------------------------------------------------------------------


def test_it_is_described_by_its_command_and_version(target: Command) -> None:
    assert target.describe.startswith(REFERENCE_COMMAND[:100])
    assert target.describe.endswith("(version 2.0.0-reference)")


def test_nothing_runs_before_it_is_asked_and_nothing_after_it_is_closed(target: Command) -> None:
    assert target.process.pid is None
    target.probe()
    pid = target.process.pid
    assert pid is not None
    assert is_running(pid)
    target.close()
    target.close()
    assert not is_running(pid)


def test_its_data_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module.tempfile, "tempdir", str(tmp_path))
    target = Command(REFERENCE_COMMAND)
    target.probe()
    assert [path.name for path in next(tmp_path.iterdir()).iterdir() if path.is_dir()] == ["data"]
    target.close()
    assert list(tmp_path.iterdir()) == []


def test_processes_that_it_started_itself_end_with_it() -> None:
    child = "import subprocess, sys, time\nsubprocess.Popen(sys.argv[1:])\ntime.sleep(600)"
    inner = shlex.split(REFERENCE_COMMAND)
    target = Command(python(child, *inner), lanes=2)
    played = target.play(s.Schedule((PUSH, s.KillBroker(), TAKE), 1, GROUPS))
    assert judge(played, target.profile).failed == ()
    port = target.process.port
    target.close()
    assert not process_module._listens(port)


def test_it_listens_on_loopback_below_the_ports_of_outgoing_connections() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(process_module.free_port() < lowest for _ in range(20))


@pytest.mark.parametrize(
    "end, ignored",
    [(signal.SIGINT, None), (signal.SIGTERM, None), (signal.SIGTERM, signal.SIGINT)],
    ids=["Ctrl-C", "SIGTERM", "SIGTERM in the background of a script"],
)
def test_a_signal_leaves_no_broker_behind(tmp_path: Path, end: signal.Signals, ignored: signal.Signals | None) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "contract.cli", "run", "--broker-cmd", REFERENCE_COMMAND, "--max-time", "60"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        preexec_fn=None if ignored is None else lambda: signal.signal(ignored, signal.SIG_IGN),
    )
    try:
        give_up_s = time.monotonic() + 20
        while not list(tmp_path.glob("broker-contract-*/data/lock")) and time.monotonic() < give_up_s:
            time.sleep(0.05)
        time.sleep(0.5)
        while not brokers_with(f"{tmp_path}/broker-contract-") and time.monotonic() < give_up_s:
            time.sleep(0.05)  # the run may just have killed it
        assert brokers_with(f"{tmp_path}/broker-contract-")
        child.send_signal(end)
        _, complaint = child.communicate(timeout=20)
        left = brokers_with(f"{tmp_path}/broker-contract-")
    finally:
        child.kill()
        child.communicate()
        for broker in brokers_with(f"{tmp_path}/broker-contract-"):
            os.kill(broker, signal.SIGKILL)
    assert b"Traceback" not in complaint
    assert left == []
    assert list(tmp_path.glob("broker-contract-*")) == []


def brokers_with(word: str) -> list[int]:
    """Ids of the broker processes with a word in their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if b"reference_broker" in words and word.encode() in words:
            found.append(int(path.parent.name))
    return found


# Faults ---------------------------------------------------------------------------------------------------------------


def test_a_kill_keeps_what_was_answered(target: Command) -> None:
    target.probe()
    before = target.process.pid
    steps = (PUSH, s.Pop(0, lease_s=1, batch=1), s.Ack(0), s.KillBroker(100), TAKE)
    played = target.play(s.Schedule(steps, 1, GROUPS))
    assert whats(played) == ["kill", "start"]
    assert target.process.pid != before
    assert judge(played, target.profile).failed == ()
    assert all(end.complete for end in of(played, PhaseEnd))


def test_a_kill_ends_what_was_under_way(target: Command) -> None:
    lanes = s.Parallel(((s.Pop(0, lease_s=1, wait_ms=5000),), (s.Advance(200), s.KillBroker())))
    played = target.play(s.Schedule((lanes,), 1, GROUPS))
    parked = next(event.call for event in of(played, Invoke))
    ends = [event.call for event in of(played, EffectEnd)]
    assert ends == [parked]
    events = [event for event in played.events if isinstance(event, EffectEnd | Fault)]
    assert [type(event).__name__ for event in events] == ["Fault", "EffectEnd", "Fault"]


def test_a_restart_is_an_orderly_one(target: Command) -> None:
    played = target.play(s.Schedule((PUSH, s.RestartBroker(), TAKE), 1, GROUPS))
    assert whats(played) == ["stop", "start"]
    assert of(played, Note) == []
    assert judge(played, target.profile).failed == ()


def test_a_broker_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "STOP_LIMIT_S", 0.5)
    deaf = (
        "import signal, sys, runpy\nreal = signal.signal\n"
        "signal.signal = lambda number, handler: real(number, signal.SIG_IGN)\n"
        "sys.argv = ['x', '--data', sys.argv[1], '--port', sys.argv[2]]\n"
        "runpy.run_module('reference_broker', run_name='__main__')"
    )
    target = Command(python(deaf, "{data}", "{port}"), lanes=2)
    try:
        played = target.play(s.Schedule((PUSH, s.RestartBroker(), TAKE), 1, GROUPS))
    finally:
        target.close()
    assert [note.text for note in of(played, Note)] == ["the broker did not stop after SIGTERM and was killed"]
    assert judge(played, target.profile).failed == ()


def test_a_paused_broker_answers_later(target: Command) -> None:
    lanes = s.Parallel(((s.PauseBroker(700),), (s.Advance(200), s.Push((s.Item(),)))))
    played = target.play(s.Schedule((lanes,), 1, GROUPS))
    assert whats(played) == ["pause", "resume"]
    call = next(event for event in of(played, Invoke) if isinstance(event.request, history.PushCall))
    answer = next(event for event in of(played, history.Return) if event.call == call.call)
    assert answer.at_us - call.at_us > 300_000
    assert judge(played, target.profile).failed == ()


def test_a_fault_stands_in_the_history_of_every_lane(target: Command) -> None:
    waiting = s.Schedule((PUSH, *[s.Advance(300)] * 6, TAKE), 1, GROUPS)
    killing = s.Schedule((s.Advance(600), s.KillBroker()), 1, GROUPS)
    first, second = target.play_many([waiting, killing])
    assert [fault.detail for fault in of(first, Fault)] == [history.BY_ANOTHER_LANE] * 2
    assert whats(first) == whats(second) == ["kill", "start"]
    assert not any(judge(played, target.profile).failed for played in (first, second))


def test_no_lane_is_killed_in_the_middle_of_a_step(target: Command) -> None:
    parked = s.Schedule((s.Pop(0, lease_s=1, wait_ms=1500), PUSH), 1, GROUPS)
    killing = s.Schedule((s.Advance(300), s.KillBroker()), 1, GROUPS)
    first, _ = target.play_many([parked, killing])
    assert all(event.outcome == "ok" for event in of(first, history.Return))


def test_what_others_did_to_the_broker_becomes_part_of_a_schedule_that_is_played_alone(target: Command) -> None:
    waiting = s.Schedule((PUSH, *[s.Advance(300)] * 4, TAKE), 1, GROUPS)
    killing = s.Schedule((s.Advance(600), s.KillBroker(), s.PauseBroker(50)), 1, GROUPS)
    played = target.play_many([waiting, killing])[0]
    whole = with_faults_of_others(Found(waiting, played, judge(played, target.profile), 0.0))
    assert [type(step).__name__ for step in whole.steps[:3]] == ["Push", "KillBroker", "PauseBroker"]
    assert whole.steps[3:] == waiting.steps[1:]


def test_storage_faults_cannot_be_had(target: Command) -> None:
    assert (target.can("kill-broker"), target.can("storage-fault")) == (True, False)


# Runs -----------------------------------------------------------------------------------------------------------------


def test_a_correct_broker_that_is_killed_again_and_again_stays_clean(target: Command) -> None:
    storm = s.Storm(operations=150, pushers=3, consumers=2, batch=100, kill_at=50)
    drawn = s.Parallel(((PUSH, s.Pop(0, lease_s=1, wait_ms=300), s.Ack(0)), (s.Advance(50), s.KillBroker())))
    schedules = [s.Schedule(steps, 1, GROUPS) for steps in ((storm,), (drawn,), (PUSH, s.KillBroker(), TAKE))]
    for played in target.play_many(schedules):
        assert judge(played, target.profile).failed == ()
        assert all(end.complete for end in of(played, PhaseEnd))
    exploration = explore(target, seed=11, schedules=8)
    assert exploration.failures == ()


def test_a_storm_finds_a_message_that_is_stored_behind_the_cursor() -> None:
    target = Command(f"{REFERENCE_COMMAND} --engine defects.pushes:LostBehindTheCursor")
    storm = s.Storm(operations=800, pushers=3, consumers=2, batch=100)
    try:
        give_up_s = time.monotonic() + 60  # mostly found in a few seconds; a loaded machine races less
        failed: tuple[str, ...] = ()
        while not failed and time.monotonic() < give_up_s:
            failed = judge(target.play(s.Schedule((storm,), 1, GROUPS)), target.profile).failed
    finally:
        target.close()
    assert {"push/stored-is-delivered", "order/starts-at-cursor", "order/no-gap-in-batch"} & set(failed)


# What cannot be judged ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("broker --port {prot}", "{prot}"),
        ("broker --data {data}", "put {port} in it"),
        ("broker '{port}", "close its quotes"),
        ("/no/such/broker {port}", "No such file"),
    ],
)
def test_a_command_that_cannot_be_one_is_refused_in_a_sentence(command: str, word: str) -> None:
    assert word in refused(command)


def test_a_command_that_ends_at_once_is_shown_with_its_last_words() -> None:
    sentence = refused(python("import sys; print('first', flush=True); sys.exit('no \\x1b[31mconfig')", "{port}"))
    assert "exited with status 1 before it was healthy" in sentence
    assert "first | no [31mconfig" in sentence


def test_a_command_that_dies_by_a_signal_says_so() -> None:
    assert "was ended by SIGABRT" in refused(python("import os; os.abort()", "{port}"))


@pytest.mark.parametrize(("status", "body", "word"), [("404", "", "404"), ("503", "{}", "not ready"), ("200", "", "")])
def test_a_server_that_is_never_healthy_is_given_up(
    status: str, body: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "START_LIMIT_S", 1.5)
    sentence = refused(python(SERVER, "{port}", status, body))
    assert "was not healthy within 1.5 s" in sentence
    assert word in sentence
    assert "a strange server" in sentence


def test_a_server_that_is_no_broker_is_refused() -> None:
    target = Command(python(SERVER, "{port}", "200", '{"status":"ok"}'))
    try:
        with pytest.raises(CouldNotJudge, match="version"):
            target.probe()
    finally:
        target.close()


def test_a_broker_that_dies_in_the_middle_is_reported_and_what_was_recorded_is_kept(
    target: Command, tmp_path: Path
) -> None:
    target.probe()
    pid = target.process.pid
    assert pid is not None
    killer = subprocess.Popen(["/bin/sh", "-c", f"sleep 1; kill -9 {pid}"])
    path = tmp_path / "1.jsonl"
    with pytest.raises(CouldNotJudge, match=r"^the broker was ended by SIGKILL .*after 1 of 1 schedules; .*on disk"):
        target.play(s.Schedule((PUSH, *[s.Advance(200)] * 10, TAKE, s.KillBroker()), 1, GROUPS), path=path)
    killer.wait(10)
    played = history.read(path)
    assert any("was ended by SIGKILL" in note.text for note in of(played, Note))
    assert [end.complete for end in of(played, PhaseEnd)] == [True, True, False, False]
    assert target.process.pid is None


def test_a_broker_that_does_not_come_back_after_a_kill_is_reported(tmp_path: Path) -> None:
    once = (
        "import pathlib, runpy, sys\ndata = pathlib.Path(sys.argv[1])\n"
        "(data / 'seen').exists() and sys.exit('cannot read my own data')\n"
        "(data / 'seen').touch()\nsys.argv = ['x', '--data', sys.argv[1], '--port', sys.argv[2]]\n"
        "runpy.run_module('reference_broker', run_name='__main__')"
    )
    target = Command(python(once, "{data}", "{port}"), lanes=2)
    try:
        with pytest.raises(CouldNotJudge, match=r"did not come back: it exited with status 1 .*cannot read my own"):
            target.play(s.Schedule((PUSH, s.KillBroker(), TAKE), 1, GROUPS))
    finally:
        target.close()


def test_a_broker_that_died_between_two_plays_is_reported(target: Command) -> None:
    target.play(s.Schedule((PUSH,), 1, GROUPS))
    assert target.process.pid is not None
    os.kill(target.process.pid, signal.SIGKILL)
    while target.process.pid is not None:
        time.sleep(0.01)
    with pytest.raises(CouldNotJudge, match=r"was ended by SIGKILL .*while nothing was played"):
        target.play(s.Schedule((PUSH,), 1, GROUPS))


# The command line -----------------------------------------------------------------------------------------------------


def test_the_command_line_runs_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--broker-cmd", REFERENCE_COMMAND, "--schedules", "3", "--broker-seed", "2", "--lanes", "3"]
    assert exit_code([*words, "--failures-dir", str(tmp_path)]) == 0
    assert "profile reference" in capsys.readouterr().out


@pytest.mark.parametrize("other", [["--broker-url", "http://127.0.0.1:1"], ["--broker-app", "a:b"]])
def test_a_command_and_another_broker_exclude_each_other(other: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["run", "--broker-cmd", "x {port}", *other]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_a_command_that_ends_at_once_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["run", "--broker-cmd", python("import sys; sys.exit(3)", "{port}")]) == 2
    complaint = capsys.readouterr().err
    assert "exited with status 3" in complaint
    assert len(complaint.strip().splitlines()) == 1
