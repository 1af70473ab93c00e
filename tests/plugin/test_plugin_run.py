"""The plugin in a pytest of its own: options, exit codes, the table, JUnit, workers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOBODY = "http://127.0.0.1:9"

COMMAND = f"{shlex.quote(sys.executable)} -m reference_broker --port {{port}} --data {{data}}"
"""The reference broker as a process, which the suite starts and ends."""

TWO_MESSAGES = """
from contract.probe import workload
from hypothesis import given, strategies as st
from strategies.schedule import Item, Push, Schedule

@workload
@given(schedule=st.just(Schedule((Push((Item(), Item())),))))
def test_two_messages(schedule, probe):
    probe(schedule)
"""
"""A workload of one small schedule: where time is real, a drawn one takes seconds."""

CANARY = '''
from reference_broker import Engine, create_app

class Canary(Engine):
    """Every pop answers the first message for ever."""

    def claimable_from(self, lane, now_ms):
        return 0

class LastResultMissing(Engine):
    """The answer of a push leaves the last of several items out."""

    def append(self, items, now_ms):
        answers = super().append(items, now_ms)
        return answers[:-1] if len(answers) > 1 else answers

def canary(folder):
    return create_app(folder, engine=Canary)

NOT_A_CLASS = 3
'''


@dataclass(frozen=True, slots=True)
class Ran:
    """What a pytest process said."""

    code: int
    text: str

    @property
    def table(self) -> list[str]:
        """The lines of the verdict table."""
        lines = self.text.splitlines()
        start = next(number for number, line in enumerate(lines) if line.split()[:1] == ["family"])
        end = next(number for number, line in enumerate(lines[start:], start) if re.search(r"passed|failed|====", line))
        return [line for line in lines[start:end] if not line.startswith(" never reached")]

    @property
    def unjudged(self) -> set[str]:
        """The sentences that say why nothing could be judged; pytest shows one in two places."""
        return {found.rstrip(" !") for found in re.findall(r"could not judge: (.*)", self.text)}


def run_pytest(folder: Path, *arguments: str, paths: tuple[Path, ...] = ()) -> Ran:
    """Runs pytest in `folder` with the checkout importable, and the plugin as an installed one would be."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "CI", "COV"))}
    environment["TMPDIR"] = str(folder)
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (*paths, folder, ROOT)))
    command = [sys.executable, "-m", "pytest", "-p", "broker_contract_pytest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-o", "asyncio_default_fixture_loop_scope=function", "--import-mode=importlib", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ran(done.returncode, done.stdout + done.stderr)


def workload(name: str) -> str:
    return str(ROOT / "contract" / f"test_{name}.py")


def brokers_of(folder: Path) -> list[int]:
    """Ids of the processes that still have data in a folder."""
    found = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(folder).encode() in contents(path)]
    return [int(path.parent.name) for path in found]


def contents(path: Path) -> bytes:
    """What a file holds; nothing where it is gone."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def replay_file(folder: Path, ran: Ran, options: str) -> Path:
    """The file that the shown command would replay, with these options."""
    shown = " ".join(ran.text.split())  # the command may be wrapped
    found = re.search(r"broker-contract replay (\S+) " + re.escape(" ".join(options.split())), shown)
    assert found is not None, ran.text
    return folder / found.group(1)


@pytest.fixture
def defects(tmp_path: Path) -> Path:
    (tmp_path / "defects_of_a_test.py").write_text(CANARY)
    return tmp_path


@pytest.fixture
def running(tmp_path: Path) -> Iterator[str]:
    """The URL of a reference broker in a process of its own."""
    command = [sys.executable, "-m", "reference_broker", "--data", str(tmp_path / "data"), "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.terminate()


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_pytest(
        tmp_path_factory.mktemp("passed"), str(ROOT / "contract"), "--schedules=10", "--broker-seed=5", "-p", "no:xdist"
    )


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    folder = tmp_path_factory.mktemp("failed")
    (folder / "defects_of_a_test.py").write_text(CANARY)
    options = ("--schedules=10", "--broker-engine=defects_of_a_test:Canary", "--junitxml=report.xml")
    return run_pytest(folder, workload("acks"), "--broker-seed=5", *options), folder


# A run that holds


def test_the_workloads_pass_on_the_reference_broker(passed: Ran) -> None:
    assert passed.code == 0, passed.text


def test_every_workload_plays_as_many_schedules_as_asked_for(passed: Ran) -> None:
    assert " 40 schedules" in passed.text


def test_the_table_names_the_families_of_rules(passed: Ran) -> None:
    assert {"push", "order", "group", "lease", "delivery", "ack"} <= {line.split()[0] for line in passed.table}


def test_the_seed_is_shown(passed: Ran) -> None:
    assert "seed 5" in passed.text


def test_workers_give_the_same_table(passed: Ran, tmp_path: Path) -> None:
    workers = run_pytest(tmp_path, str(ROOT / "contract"), "--schedules=10", "--broker-seed=5", "-n2")
    assert (workers.code, workers.table) == (0, passed.table)


def test_histories_are_kept_in_a_folder_of_each_workload(tmp_path: Path) -> None:
    run_pytest(tmp_path, workload("groups"), "--schedules=3", "--history-dir=kept")
    assert sorted(path.name for path in (tmp_path / "kept" / "test_groups").iterdir()) == [
        "1.jsonl",
        "2.jsonl",
        "3.jsonl",
    ]


def test_a_time_limit_ends_a_workload(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, workload("order"), "--max-time=0.3")
    assert ran.code == 0, ran.text


def test_schedules_are_played_side_by_side_on_a_running_broker(running: str, tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, workload("order"), "--schedules=5", f"--broker-url={running}")
    assert (ran.code, " 5 schedules" in ran.text, running in ran.text) == (0, True, True), ran.text


def test_a_command_is_started_judged_and_ended(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(TWO_MESSAGES)
    ran = run_pytest(tmp_path, "test_own.py", f"--broker-cmd={COMMAND}")
    assert (ran.code, " 1 schedule" in ran.text, "-m reference_broker" in ran.text) == (0, True, True), ran.text
    assert not brokers_of(tmp_path)


def test_an_application_is_played_on_a_virtual_clock(tmp_path: Path) -> None:
    app = "--broker-app=reference_broker:create_app"
    ran = run_pytest(tmp_path, workload("order"), "--schedules=5", "--broker-seed=5", app)
    assert (ran.code, " 5 schedules" in ran.text, "reference_broker:create_app" in ran.text) == (0, True, True), (
        ran.text
    )


# A run that finds something


def test_a_violation_is_exit_code_1(failed: tuple[Ran, Path]) -> None:
    assert failed[0].code == 1, failed[0].text


def test_a_failure_names_rule_expectation_and_schedule(failed: tuple[Ran, Path]) -> None:
    assert re.search(r"FAIL \w+/[\w-]+ +MUST(.|\n)* expected (.|\n)* observed (.|\n)* schedule ", failed[0].text)


def test_a_failure_has_no_python_traceback(failed: tuple[Ran, Path]) -> None:
    assert "Traceback" not in failed[0].text


def test_a_failure_shows_the_command_that_replays_it(failed: tuple[Ran, Path]) -> None:
    ran, folder = failed
    path = re.search(r"broker-contract replay (\S+) --broker-engine defects_of_a_test:Canary", ran.text)
    assert path is not None
    assert (folder / path.group(1)).is_file()


def test_the_table_shows_the_violated_family(failed: tuple[Ran, Path]) -> None:
    assert any("FAIL 1" in line or "FAIL 2" in line for line in failed[0].table)


def test_junit_knows_the_failure(failed: tuple[Ran, Path]) -> None:
    suite = ElementTree.parse(failed[1] / "report.xml").getroot()[0]
    assert suite.get("failures") == "1"


def test_junit_carries_the_verdicts(failed: tuple[Ran, Path]) -> None:
    report = ElementTree.parse(failed[1] / "report.xml").getroot()
    values = [prop.get("value", "") for prop in report.iter("property") if prop.get("name") == "broker-contract"]
    assert len(values) == 1
    assert '"verdict":"FAIL"' in values[0]


def test_a_violation_found_by_a_worker_is_exit_code_1(defects: Path) -> None:
    options = ("--schedules=10", "--broker-engine=defects_of_a_test:Canary", "-n2")
    ran = run_pytest(defects, workload("acks"), *options)
    assert (ran.code, "FAIL" in ran.text) == (1, True)


def test_a_violation_by_a_command_is_exit_code_1_with_a_replay(defects: Path) -> None:
    command = f"{COMMAND} --engine defects_of_a_test:LastResultMissing"
    (defects / "test_own.py").write_text(TWO_MESSAGES)
    ran = run_pytest(defects, "test_own.py", f"--broker-cmd={command}")
    assert (ran.code, "FAIL push/one-result-per-item" in ran.text) == (1, True), ran.text
    assert replay_file(defects, ran, f"--broker-cmd {shlex.quote(command)}").is_file()


def test_a_violation_by_an_application_is_exit_code_1_with_a_replay(defects: Path) -> None:
    app = "defects_of_a_test:canary"
    ran = run_pytest(defects, workload("acks"), "--schedules=10", "--broker-seed=5", f"--broker-app={app}")
    assert ran.code == 1, ran.text
    assert replay_file(defects, ran, f"--broker-app {app}").is_file()


# A run that cannot judge


def test_an_unreachable_broker_is_exit_code_2(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, workload("order"), f"--broker-url={NOBODY}")
    assert (ran.code, "could not judge: no broker answers" in ran.text) == (2, True), ran.text


def test_an_unreachable_broker_is_exit_code_2_before_workers_start(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, workload("order"), f"--broker-url={NOBODY}", "-n2")
    assert (ran.code, "gw0" in ran.text) == (2, False), ran.text


def test_an_engine_that_cannot_be_loaded_is_exit_code_2(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, workload("order"), "--broker-engine=nobody_has_this:Engine")
    assert (ran.code, "'nobody_has_this:Engine' cannot be loaded" in ran.text) == (2, True)


def test_an_engine_that_is_no_class_is_exit_code_2(defects: Path) -> None:
    ran = run_pytest(defects, workload("order"), "--broker-engine=defects_of_a_test:NOT_A_CLASS")
    assert (ran.code, "names no class" in ran.text) == (2, True)


def test_a_broker_that_goes_away_meanwhile_is_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text(
        "from contract.errors import CouldNotJudge\nfrom reference_broker import Engine\n\n"
        "class Leaving(Engine):\n    def recover_on_start(self):\n        raise CouldNotJudge('the broker is gone')\n"
    )
    ran = run_pytest(tmp_path, workload("order"), "--schedules=5", "--broker-engine=leaving:Leaving")
    assert (ran.code, "could not judge: the broker is gone" in ran.text) == (2, True), ran.text


def test_a_command_that_ends_at_once_is_exit_code_2(tmp_path: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -c 'raise SystemExit(5)' {{port}}"
    ran = run_pytest(tmp_path, workload("order"), f"--broker-cmd={command}")
    assert (ran.code, "Traceback" in ran.text) == (2, False), ran.text
    (sentence,) = ran.unjudged
    assert re.search(r"the command .* exited with status 5 before it was healthy .*; correct it", sentence), sentence


def test_an_application_that_cannot_be_imported_is_exit_code_2(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, workload("order"), "--broker-app=nobody_has_this:create")
    (sentence,) = ran.unjudged
    assert (ran.code, "'nobody_has_this:create' cannot be imported" in sentence) == (2, True), ran.text


# Options


@pytest.mark.parametrize("option", ["--schedules=0", "--schedules=x", "--max-time=0", "--broker-seed=x"])
def test_a_value_out_of_range_is_a_usage_error(tmp_path: Path, option: str) -> None:
    ran = run_pytest(tmp_path, workload("order"), option)
    assert (ran.code, option.split("=")[0] in ran.text) == (4, True)


def test_a_command_without_its_other_half_is_exit_code_2(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, workload("order"), f"--broker-url={NOBODY}", "--storage-stop-cmd=x")
    assert (ran.code, "--storage-stop-cmd 'x' needs --storage-start-cmd beside it" in ran.text) == (2, True), ran.text


def test_commands_for_a_broker_that_is_not_out_there_are_exit_code_2(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, workload("order"), "--storage-stop-cmd=x", "--storage-start-cmd=y")
    assert (ran.code, "is for a broker of --broker-url or --broker-cmd" in ran.text) == (2, True), ran.text


def test_the_option_for_seeded_defects_is_not_in_the_help(tmp_path: Path) -> None:
    text = run_pytest(tmp_path, "--help").text
    assert ("--broker-url" in text, "--broker-engine" in text) == (True, False)


# Other projects


def test_a_project_with_packages_of_the_same_names_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "contract").mkdir()
    (tmp_path / "contract" / "__init__.py").write_text("OURS = 1\n")
    (tmp_path / "test_own.py").write_text("from contract import OURS\n\ndef test_own():\n    assert OURS == 1\n")
    ran = run_pytest(tmp_path, "test_own.py")
    assert ran.code == 0, ran.text


@pytest.mark.parametrize("name", ["client", "strategies", "contract"])
def test_a_package_that_hides_ours_is_refused_with_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    ran = run_pytest(tmp_path, "--schedules=3")
    errors = [line for line in ran.text.splitlines() if line.startswith("ERROR")]
    assert (ran.code, len(errors)) == (4, 1)
    assert f"the package {name!r}" in errors[0]


def test_a_workload_of_a_project_gets_the_options(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(
        "from contract.probe import drawn, workload\nfrom hypothesis import given\n\n"
        "@workload\n@given(schedule=drawn('any'))\ndef test_own(schedule, probe):\n    probe(schedule)\n"
    )
    ran = run_pytest(tmp_path, "test_own.py", "--schedules=7")
    assert (ran.code, " 7 schedules" in ran.text) == (0, True), ran.text


def test_a_probe_without_a_workload_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("def test_own(probe):\n    probe(None)\n")
    ran = run_pytest(tmp_path, "test_own.py")
    assert (ran.code, "put @workload above @given" in ran.text) == (1, True), ran.text


def test_an_unknown_workload_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("from contract.probe import drawn\n\ndrawn('everything')\n")
    ran = run_pytest(tmp_path, "test_own.py")
    assert "there are order, groups, redelivery, acks, any" in ran.text


def test_a_project_that_does_not_use_the_suite_does_not_load_it(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(
        "import sys\n\ndef test_own():\n    assert not {'contract', 'client', 'strategies'} & set(sys.modules)\n"
    )
    ran = run_pytest(tmp_path, "test_own.py")
    assert ran.code == 0, ran.text
