"""The commands run, replay, check and rules, on the simulated reference broker and on made-up results."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import contract
from contract import cli, replay_file
from contract.errors import CouldNotJudge
from contract.explore import Exploration, Failure
from contract.history import End, Header, History, read, write
from contract.rules import RULES
from contract.verdicts import RuleVerdict, Verdict, Violation
from strategies.schedule import Item, Pop, Push, Schedule

SCHEDULE = Schedule(steps=(Push((Item(),)), Pop(label=0)))
RULE = "group/independent-cursor"


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    """Runs the command in an empty folder; gives its exit code and its lines, standard error last."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        code = cli.exit_code([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return code, (said.out + said.err).splitlines()

    return run


def process(*arguments):
    """The command as a process of its own, with the package that this test sees."""
    place = str(Path(contract.__file__).parent.parent)
    code = "from contract.cli import main; main()"
    return {"args": [sys.executable, "-c", code, *arguments], "env": os.environ | {"PYTHONPATH": place}}


def violation(rule=RULE):
    return Violation(rule, "q", "p0", "H", "H starts at m1", "H got m2", (3,))


def failure(rule=RULE):
    history = History(Header(1, "0", "t", "simulated", {}, ("q",), SCHEDULE), (End(0),))
    return Failure(violation(rule), SCHEDULE, SCHEDULE, history, 3, 3, 0.1, 0.2)


def exploration(*rules, failures=()):
    return Exploration("a broker", "2.x", 7, 10, 200, 1.5, rules, {}, (), tuple(failures))


HELD = RuleVerdict("order/push-order", Verdict.PASS, 5)
VIOLATED = RuleVerdict(RULE, Verdict.FAIL, 5, violations=(violation(),))


@pytest.fixture
def result(monkeypatch):
    """Sets what an exploration comes to; gives the options with which it was asked."""
    asked = {}

    def returns(*rules, failures=()):
        def explore(target, **options):
            asked.update(options, target=target)
            return exploration(*rules, failures=failures)

        monkeypatch.setattr("contract.explore.explore", explore)
        return asked

    return returns


# run


def test_a_real_run_on_the_reference_broker_holds(command):
    code, lines = command("run", "--schedules", "25", "--broker-seed", "4127")
    assert code == 0
    assert "seed 4127" in lines[0]
    assert "25 schedules" in lines[1]
    assert lines[-1].endswith("exit 0")


def test_the_same_seed_gives_the_same_verdicts(command):
    first, second = (command("run", "--schedules", "15", "--broker-seed", "5")[1] for _ in range(2))
    assert first[2:] == second[2:]


def test_every_history_is_kept(command, tmp_path):
    command("run", "--schedules", "5", "--history-dir", tmp_path / "kept")
    files = sorted((tmp_path / "kept").glob("*.jsonl"))
    assert len(files) == 5
    assert not any(read(file).cut for file in files)


def test_no_options_have_a_limit_of_time(command, result):
    asked = result(HELD)
    command("run")
    assert asked["max_time_s"] == cli.DEFAULT_TIME_S
    assert asked["schedules"] is None


def test_a_number_of_schedules_is_not_cut_short_by_time(command, result):
    asked = result(HELD)
    command("run", "--schedules", "3")
    assert asked["max_time_s"] is None
    assert asked["schedules"] == 3


def test_the_seed_is_drawn_anew(command, result):
    asked = result(HELD)
    seeds = []
    for _ in range(5):
        command("run")
        seeds.append(asked["seed"])
    assert len(set(seeds)) > 1


def test_piped_output_has_no_colour(command, result):
    result(HELD, VIOLATED)
    _, lines = command("run")
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(("rules", "code"), [((HELD,), 0), ((HELD, VIOLATED), 1), ((), 2)])
def test_the_exit_code_is_that_of_the_rules(command, result, rules, code):
    result(*rules)
    assert command("run")[0] == code


def test_a_failure_is_a_file_that_is_named(command, result, tmp_path):
    result(VIOLATED, failures=[failure()])
    code, lines = command("run")
    (path,) = (tmp_path / "failures").iterdir()
    assert code == 1
    assert f" replay    broker-contract replay failures/{path.name}" in lines
    assert replay_file.read(path).schedule == SCHEDULE


def test_the_replay_command_names_the_broker_but_no_secret(command, result, monkeypatch):
    result(VIOLATED, failures=[failure()])
    url = "http://someone:secret@127.0.0.1:9"
    _, lines = command("run", "--broker-url", url, "--broker-token", "secret", "--path-prefix", "/x")
    replay = next(line for line in lines if line.startswith(" replay"))
    assert replay.endswith("--broker-url http://127.0.0.1:9 --path-prefix /x")
    assert not any("secret" in line for line in lines)


def test_saved_failures_are_played_first(command, result):
    result(VIOLATED, failures=[failure()])
    command("run")
    asked = result(HELD)
    command("run")
    assert asked["saved"] == [SCHEDULE]


@pytest.mark.parametrize(("rules", "code"), [((HELD,), 2), ((HELD, VIOLATED), 1)])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), CouldNotJudge("the broker has gone; start it")])
def test_a_run_that_was_cut_short_says_what_it_has(command, monkeypatch, rules, code, error):
    def explore(target, *, so_far, **options):
        so_far(exploration(*rules))
        raise error

    monkeypatch.setattr("contract.explore.explore", explore)
    got, lines = command("run")
    assert got == code
    assert any(line.endswith(f"exit {code}") for line in lines)
    assert lines[-1].startswith("broker-contract: ")


def test_queues_that_could_not_be_deleted_are_named(command, monkeypatch):
    def explore(target, **options):
        target.left_behind = ["bc-1-q"]
        return exploration(HELD)

    monkeypatch.setattr("contract.explore.explore", explore)
    _, lines = command("run")
    assert "bc-1-q" in lines[-1]


def test_ctrl_c_leaves_the_histories_and_prints_the_table(tmp_path):
    command = process("run", "--max-time", "60", "--history-dir", "kept")
    child = subprocess.Popen(**command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 30
        while not (tmp_path / "kept" / "5.jsonl").exists() and time.monotonic() < end:
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        output, complaint = child.communicate(timeout=20)
    finally:
        child.kill()
        child.communicate()
    assert child.returncode == 2
    assert "evidence (compared)" in output
    assert complaint.startswith("broker-contract: interrupted")
    assert not read(tmp_path / "kept" / "4.jsonl").cut


def test_a_reader_that_goes_away_does_not_change_the_exit_code(tmp_path):
    command = process("run", "--schedules", "3", "--broker-seed", "4127")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        done = subprocess.run(
            **command, cwd=tmp_path, stdout=gone, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == 0
    assert done.stderr == ""


# replay


def replay(**changes):
    values = {
        "replay": 1,
        "suite": "0",
        "rule": "push/no-phantom",
        "signature": "",
        "target": "t",
        "seed": 1,
        "expected": "",
        "observed": "",
        "schedule": SCHEDULE,
    }
    return replay_file.Replay(**(values | changes))


def test_a_replay_whose_rule_holds(command, tmp_path):
    path = replay_file.write(replay(), tmp_path)
    code, lines = command("replay", path)
    assert code == 0
    assert lines[0].startswith("PASS push/no-phantom")


def test_a_replay_that_proves_nothing_could_not_judge(command, tmp_path):
    path = replay_file.write(replay(rule="ack/stale-lease-refused"), tmp_path)
    code, lines = command("replay", path)
    assert code == 2
    assert lines[0].startswith("NOT EXERCISED ack/stale-lease-refused")


def test_a_replay_of_a_rule_of_another_suite(command, tmp_path):
    path = replay_file.write(replay(rule="other/rule"), tmp_path)
    code, lines = command("replay", path)
    assert code == 2
    assert "other/rule" in lines[-1]


def test_one_of_many_replays_decides(command, tmp_path):
    held = replay_file.write(replay(), tmp_path)
    silent = replay_file.write(replay(rule="ack/stale-lease-refused"), tmp_path)
    code, lines = command("replay", held, silent)
    assert code == 2
    assert len(lines) == 2


# check


def test_a_recorded_history_is_judged_again(command, tmp_path):
    command("run", "--schedules", "5", "--broker-seed", "4127", "--history-dir", tmp_path / "kept")
    code, lines = command("check", tmp_path / "kept")
    assert code == 0
    assert lines[0].endswith("5 histories")
    assert lines[-1].endswith("exit 0")


def test_a_history_that_was_not_recorded_to_its_end_says_so(command, tmp_path):
    command("run", "--schedules", "1", "--broker-seed", "4127", "--history-dir", tmp_path / "kept")
    whole = read(tmp_path / "kept" / "1.jsonl")
    write(History(whole.header, whole.events[:-1]), tmp_path / "cut.jsonl")
    _, lines = command("check", tmp_path / "cut.jsonl")
    assert lines[0].startswith(" cut: ")


def test_a_history_that_shows_nothing_could_not_judge(command, tmp_path):
    write(History(Header(1, "0", "t", "simulated", {}, ("q",)), (End(0),)), tmp_path / "empty.jsonl")
    assert command("check", tmp_path / "empty.jsonl")[0] == 2


# rules


def test_the_list_names_every_rule(command):
    _, lines = command("rules")
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == list(RULES)


def test_the_reference_page_has_an_entry_for_every_rule(command):
    _, lines = command("rules", "--markdown")
    assert [line[4:] for line in lines if line.startswith("### ")] == list(RULES)
