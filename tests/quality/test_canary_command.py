"""The canary through the command: a broker that is plainly wrong turns the exit code, the table and the files red."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import contract

DEFECTS = Path(__file__).parent
PACKAGES = Path(contract.__file__).parent.parent
CANARY = ("--broker-engine", "defects.deliveries:Canary")
VIOLATED = ("lease/exclusive", "delivery/not-after-ack")


def command(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-c", "from contract.cli import main; main()", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(PACKAGES), str(DEFECTS)))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def red(tmp_path_factory):
    """One run on the canary, whose output and files the tests look at."""
    folder = tmp_path_factory.mktemp("canary")
    done = command(folder, "run", "--schedules", "6", "--broker-seed", "1", "--history-dir", "histories", *CANARY)
    return folder, done


def test_the_exit_code_says_violated(red):
    _, done = red
    assert done.returncode == 1, done.stderr
    assert done.stdout.rstrip().endswith("exit 1")


@pytest.mark.parametrize("rule", VIOLATED)
def test_the_rules_are_named_as_violated_or_as_also_violated(red, rule):
    _, done = red
    assert rule in done.stdout


def test_every_failure_has_a_file_of_a_few_steps(red):
    folder, done = red
    files = list((folder / "failures").iterdir())
    assert len(files) == done.stdout.count("\n replay ")
    assert all(len(json.loads(file.read_text())["schedule"]["steps"]) <= 8 for file in files)


def test_the_replay_fails_on_the_canary(red):
    folder, _ = red
    file = next((folder / "failures").glob("lease-exclusive-*.json"))
    done = command(folder, "replay", str(file), *CANARY)
    assert done.returncode == 1
    assert done.stdout.startswith("FAIL lease/exclusive")


def test_the_replay_holds_on_the_reference_broker(red):
    folder, _ = red
    file = next((folder / "failures").glob("lease-exclusive-*.json"))
    done = command(folder, "replay", str(file))
    assert done.returncode == 0
    assert done.stdout.startswith("PASS lease/exclusive")


def test_two_replays_say_the_same(red):
    folder, _ = red
    file = next((folder / "failures").glob("lease-exclusive-*.json"))
    assert command(folder, "replay", str(file), *CANARY).stdout == command(folder, "replay", str(file), *CANARY).stdout


def test_the_histories_are_judged_red_later(red):
    folder, _ = red
    done = command(folder, "check", "histories")
    assert done.returncode == 1
    assert "FAIL lease/exclusive" in done.stdout


def test_the_saved_failures_are_found_at_once(red):
    folder, _ = red
    done = command(folder, "run", "--schedules", "1", *CANARY)
    assert done.returncode == 1
