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
from contract import history, replay_file
from strategies.schedule import (
    Ack,
    AckItem,
    Advance,
    Group,
    Item,
    KillBroker,
    LoseAnswer,
    Parallel,
    PauseBroker,
    Pop,
    Push,
    RestartBroker,
    Schedule,
    StorageOutage,
)

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


def test_every_finding_is_played_again(queen, tmp_path):
    arguments = ("--url", queen.url, "--times", "8", *queen.storage("storage-crash"))
    done = run(tmp_path, [str(ROOT / "tests" / "queen" / "findings.py")], *arguments)
    print(done.stdout + done.stderr)
    assert done.returncode == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert {name for _, name, *_ in lines} == {path.stem for path in (ROOT / "docs" / "findings").glob("*.json")}
    assert all(state in ("REPRODUCED", "GONE") for state, *_ in lines)


TWO_GROUPS = (Group("A", "all"), Group("B", "new"))
TWO = (Item(0), Item(1))
AWAY = StorageOutage(1500)
OUTAGES = (
    # Messages that were answered before, pushes and pops meanwhile, and more afterwards.
    Schedule(
        (
            Push(TWO),
            Pop(0, group=1),
            Parallel(((AWAY,), (Advance(800), Push(TWO), Pop(1), Push(TWO)), (Advance(1000), Pop(2, partition=1)))),
            Push(TWO),
            Pop(3, group=1, partition=0),
        ),
        partitions=2,
        groups=TWO_GROUPS,
    ),
    # A batch that is held while the storage goes: one part was acked before, one is acked meanwhile, one afterwards.
    Schedule(
        (
            Push((Item(), Item(), Item())),
            Pop(0, lease_s=3),
            Ack(0, (AckItem(0),)),
            Parallel(
                ((StorageOutage(500),), (Advance(700), Ack(0, (AckItem(1),))), (Advance(300), Pop(1, wait_ms=2000)))
            ),
            Ack(0, (AckItem(2),)),
            Pop(2),
        ),
        groups=TWO_GROUPS,
    ),
)
ALL_OF_IT = (
    *OUTAGES,
    Schedule(
        (
            Push(TWO),
            Pop(0, lease_s=2),
            Parallel(((KillBroker(200),), (Push(TWO), Push(TWO)), (Pop(1, group=1, wait_ms=500),))),
            Parallel(((PauseBroker(700),), (Push(TWO), Ack(0)))),
            Parallel(((StorageOutage(800),), (Advance(600), Push(TWO), KillBroker(), Push(TWO)))),
            RestartBroker(),
            Pop(2, group=1),
        ),
        partitions=2,
        groups=TWO_GROUPS,
    ),
)


def disturbed(folder, schedules, *arguments):
    """A run that plays given schedules first and then drawn ones; the done command, and the histories that it kept."""
    for number, schedule in enumerate(schedules):
        kept = replay_file.Replay(1, "0", "push/stored-is-delivered", str(number), "", 1, "", "", schedule)
        replay_file.write(kept, folder / "failures")
    bounds = ("--schedules", "10", "--lanes", "10", "--max-time", "30", "--history-dir", "kept")
    done = command(folder, "run", *arguments, "--broker-seed", "31", *bounds)
    return done, [history.read(path) for path in sorted((folder / "kept").glob("*.jsonl"))]


def own_faults(histories):
    """What each lane did to the broker itself."""
    events = [event for played in histories for event in played.events]
    faults = [event for event in events if isinstance(event, history.Fault)]
    return [fault.what for fault in faults if fault.detail != history.BY_ANOTHER_LANE]


def pushed_meanwhile(histories):
    """Statuses of the items that were pushed while the storage was away."""
    found = []
    for played in histories:
        away, begun = False, set()
        for event in played.events:
            if isinstance(event, history.Fault) and event.what.startswith("storage-"):
                away = event.what == "storage-stop"
            elif isinstance(event, history.Invoke) and away:
                begun.add(event.call)
            elif isinstance(event, history.Return) and event.call in begun and away:
                found += getattr(event.result, "statuses", ())
    return found


@pytest.fixture(scope="module", params=["storage-crash", "storage-kill"])
def outages(request, queen, tmp_path_factory):
    """PostgreSQL is broken off and started again under a running broker."""
    arguments = ("--broker-url", queen.url, *queen.storage(request.param))
    return disturbed(tmp_path_factory.mktemp("outages"), OUTAGES, *arguments)


def test_the_real_broker_holds_while_its_storage_goes_and_comes_back(outages):
    done, histories = outages
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    whats = own_faults(histories)
    assert whats.count("storage-stop") == whats.count("storage-start") >= len(OUTAGES)


def test_what_was_pushed_to_the_spool_came(outages):
    done, histories = outages
    assert pushed_meanwhile(histories).count("buffered") >= 2
    assert re.search(r"^ push +7  PASS", done.stdout, re.MULTILINE)


def test_the_real_broker_holds_with_all_of_it(queen, tmp_path):
    broker = queen.order("queen", "PORT", "DATA").replace("PORT", "{port}").replace("DATA", "{data}")
    arguments = ("--broker-cmd", broker, *queen.storage("storage-crash"))
    done, histories = disturbed(tmp_path, ALL_OF_IT, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    whats = own_faults(histories)
    assert {"kill", "stop", "pause", "resume", "start", "storage-stop", "storage-start"} <= set(whats)
    assert whats.count("kill") + whats.count("stop") == whats.count("start")
    groups = [len(played.header.schedule.groups) for played in histories]
    assert sum(count > 1 for count in groups) >= len(ALL_OF_IT)


def test_the_broker_is_still_healthy(queen_url):
    with urllib.request.urlopen(f"{queen_url}/health", timeout=10) as answer:
        assert json.load(answer)["version"] == "1.3.0"
