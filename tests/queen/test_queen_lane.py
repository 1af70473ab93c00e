"""The suite against Queen 1.3.0: it holds with its known deviations, and everything else works there too."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import contract
from contract import replay_file
from strategies.schedule import Ack, AckItem, Group, Item, LoseAnswer, Pop, Push, Schedule

ROOT = Path(__file__).parents[2]
PACKAGES = Path(contract.__file__).parent.parent
LIMIT_S = 300


def run(folder, program, *arguments):
    """A program as a user runs it; its exit code decides, and what it said is shown when it is the wrong one."""
    return subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(PACKAGES)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def command(folder, *arguments):
    done = run(folder, ["-c", "from contract.cli import main; main()"], *arguments)
    print(done.stdout + done.stderr)
    return done


def queues(url):
    """The names of all queues of the broker."""
    with urllib.request.urlopen(f"{url}/api/v1/resources/queues", timeout=10) as answer:
        return answer.read().decode()


@pytest.fixture(scope="module")
def explored(queen_url, tmp_path_factory):
    """One bounded run, whose output and files several tests look at."""
    folder = tmp_path_factory.mktemp("explored")
    arguments = (
        "run",
        "--broker-url",
        queen_url,
        "--schedules",
        "128",
        "--max-time",
        "60",
        "--broker-seed",
        "31",
        "--history-dir",
        "kept",
    )
    return folder, command(folder, *arguments)


def test_the_real_broker_holds_with_its_known_deviations(explored):
    _, done = explored
    assert done.returncode == 0
    assert "(version 1.3.0)" in done.stdout
    assert "profile 1.x" in done.stdout
    assert done.stderr == ""


def test_every_family_was_compared(explored):
    _, done = explored
    rows = re.findall(r"^ (\w+) +\d+  .*?  +([\d,]+)$", done.stdout, re.MULTILINE)
    evidence = {family: int(compared.replace(",", "")) for family, compared in rows}
    assert {"push", "order", "group", "lease", "delivery", "ack"} <= evidence.keys()
    assert all(evidence.values())


def test_recorded_histories_are_judged_alike_later(explored):
    folder, _ = explored
    assert command(folder, "check", "kept").returncode == 0


def test_no_queue_of_the_run_is_left(explored, queen_url):
    assert '"bc-' not in queues(queen_url)


def test_a_replay_file_plays_on_it(queen_url, tmp_path):
    schedule = Schedule(
        steps=(
            Push((Item(), Item(), Item())),
            Pop(label=0, group=0, partition=0, batch=2),
            LoseAnswer(Push((Item(),))),
            Ack(pop=0, items=(AckItem(1),)),
            Pop(label=1, group=1, partition=0),
        ),
        groups=(Group("G", "all"), Group("H", "all")),
    )
    path = replay_file.write(
        replay_file.Replay(1, "0", "group/independent-cursor", "", "another broker", 1, "", "", schedule), tmp_path
    )
    done = command(tmp_path, "replay", str(path), "--broker-url", queen_url)
    assert done.returncode == 0
    assert done.stdout.startswith("PASS group/independent-cursor")


@pytest.mark.parametrize("crash", [(), ("--crash",)], ids=["plain", "crash"])
def test_the_example_flow_holds(queen_url, tmp_path, crash):
    done = run(tmp_path, [str(ROOT / "examples" / "multi_queue_flow.py")], "--url", queen_url, *crash)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_finding_is_played_again(queen_url, tmp_path):
    done = run(tmp_path, [str(ROOT / "tests" / "queen" / "findings.py")], "--url", queen_url, "--times", "8")
    print(done.stdout + done.stderr)
    assert done.returncode == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert {name for _, name, *_ in lines} == {path.stem for path in (ROOT / "docs" / "findings").glob("*.json")}
    assert all(state in ("REPRODUCED", "GONE") for state, *_ in lines)


def test_the_broker_is_still_healthy(queen_url):
    with urllib.request.urlopen(f"{queen_url}/health", timeout=10) as answer:
        assert json.load(answer)["version"] == "1.3.0"
