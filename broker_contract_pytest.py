"""The pytest plugin of broker-contract: options, the fixture `probe`, readable failures and the table of verdicts.

Importing this module imports nothing else of the suite: pytest loads it in every project in whose environment the
suite is installed, and such a project may have packages named `contract`, `client` or `strategies` of its own.
"""

from __future__ import annotations

import argparse
import importlib
import os
import secrets
import shutil
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from contract.probe import Plan, Probe, Summary

PROPERTY = "broker-contract"
"""Name of the property of a test report that carries the verdicts of a workload."""

HOOKS = {
    "storage-stop-cmd": "Breaks off the broker's storage, as a crash would; run during schedules.",
    "storage-start-cmd": "Starts it again on its data; ends once it can be used.",
    "broker-kill-cmd": "kill -9 for the broker at the URL.",
    "broker-start-cmd": "Starts it again at its URL, on its data.",
}
COULD_NOT_JUDGE = 2
PIPED_WIDTH = 120
NAMES = ("client", "strategies", "contract")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of the workloads."""
    group = parser.getgroup("broker contract")
    group.addoption("--broker-url", metavar="URL", help="A running broker. Default: the reference broker, simulated.")
    group.addoption(
        "--broker-cmd",
        metavar="COMMAND",
        help="Starts the broker, and may kill it; {port} and {data} in it are replaced by a port and a folder.",
    )
    group.addoption(
        "--broker-app",
        metavar="MODULE:FACTORY",
        help="An ASGI application in this process: the factory is called with a folder.",
    )
    for name, text in HOOKS.items():
        group.addoption(f"--{name}", metavar="COMMAND", help=text)
    group.addoption(
        "--broker-token", metavar="TOKEN", default=os.environ.get("BROKER_TOKEN"), help="Bearer token (BROKER_TOKEN)."
    )
    group.addoption("--broker-seed", type=int, metavar="N", help="Draws the same schedules again. Default: at random.")
    group.addoption("--schedules", type=_positive, metavar="N", help="Schedules of each workload. Default: 100.")
    group.addoption(
        "--max-time", type=_seconds, metavar="SECONDS", help="Each workload stops playing schedules after so long."
    )
    group.addoption("--history-dir", type=Path, metavar="DIR", help="Keep every history here.")
    group.addoption(
        "--failures-dir",
        type=Path,
        default=Path("failures"),
        metavar="DIR",
        help="Where a replay file of each failure is written. Default: failures.",
    )
    # For the suite's own tests: a subclass of the reference broker's engine, "package.module:Class", with a defect.
    group.addoption("--broker-engine", metavar="MODULE:CLASS", help=argparse.SUPPRESS)


def _field(option: str) -> str:
    return option.replace("-", "_")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is too small; give at least 1")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text} is no time; give seconds above 0")
    return number


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker; takes the options up where they show that the suite is used."""
    config.addinivalue_line("markers", "workload: draws schedules, plays them against a broker and judges them")
    config.pluginmanager.register(_Plugin(config), "broker-contract-session")


def _suite() -> Any:
    """`contract.probe`, once it is certain that it is ours. Raises `UsageError` where another package hides it."""
    here = Path(__file__).resolve().parent
    for name in NAMES:
        try:
            found = importlib.import_module(name).__file__
        except ImportError as error:
            raise pytest.UsageError(f"broker-contract: its package {name!r} cannot be imported: {error}") from error
        if found is None or Path(found).resolve().parent != here / name:
            raise pytest.UsageError(
                f"broker-contract: the package {name!r} in {found or 'this project'!r} hides the suite's own in "
                f"{os.fspath(here / name)!r}; run its workloads from a folder that has no package of that name"
            )
    return importlib.import_module("contract.probe")


@pytest.fixture(scope="module")
def probe(request: pytest.FixtureRequest) -> _CurrentProbe:
    """Plays and judges the schedules of a workload: `probe(schedule)`."""
    plugin = request.config.pluginmanager.get_plugin("broker-contract-session")
    assert isinstance(plugin, _Plugin)
    return plugin.current


class _CurrentProbe:
    """The probe of the workload that runs now. One object for a whole module, as Hypothesis asks of fixtures."""

    def __init__(self) -> None:
        self.probe: Probe | None = None

    def __call__(self, schedule: Any) -> None:
        if self.probe is None:
            raise pytest.UsageError("the fixture 'probe' is for workloads; put @workload above @given")
        self.probe(schedule)


class _Plugin:
    """One pytest session, in the controller or in a worker."""

    def __init__(self, config: pytest.Config) -> None:
        self.current = _CurrentProbe()
        self._config = config
        self._summaries: dict[str, Summary] = {}
        self._worker = hasattr(config, "workerinput")
        option = config.option
        brokers = (option.broker_url, option.broker_cmd, option.broker_app, option.broker_engine)
        hooks = (getattr(option, field) for field in map(_field, HOOKS))
        given = (*brokers, *hooks, option.broker_seed, option.schedules, option.max_time, option.history_dir)
        self._asked_for = any(value is not None for value in given)
        if config.option.broker_seed is None:
            config.option.broker_seed_at_random = True
            config.option.broker_seed = secrets.randbelow(1_000_000)
        self._configured = False

    # The suite

    def suite(self) -> Any:
        """`contract.probe`, with the options of this session."""
        suite = _suite()
        if not self._configured:
            suite.SESSION.configure(self._plan(suite))
            self._configured = True
        return suite

    def _plan(self, suite: Any) -> Plan:
        option = self._config.option
        plan: Plan = suite.Plan(
            seed=option.broker_seed,
            fixed=not getattr(option, "broker_seed_at_random", False),
            schedules=option.schedules,
            max_time_s=option.max_time,
            history_dir=option.history_dir,
            failures_dir=option.failures_dir,
            url=option.broker_url,
            command=option.broker_cmd,
            app=option.broker_app,
            token=option.broker_token,
            engine=option.broker_engine,
            hooks={field: getattr(option, field) for field in map(_field, HOOKS)},
        )
        return plan

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Ends the session with 2 where the chosen broker cannot be judged, before workers start."""
        if self._worker or not self._asked_for:
            return
        suite = self.suite()
        try:
            _ = suite.SESSION.target().capabilities
        except suite.CouldNotJudge as error:
            pytest.exit(f"could not judge: {error}", returncode=COULD_NOT_JUDGE)

    # Tests

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """Runs a workload and turns what it found into one readable failure."""
        if pyfuncitem.get_closest_marker("workload") is None:
            return (yield)
        suite = self.suite()
        suite.prepare(pyfuncitem.function, pyfuncitem.name)
        found, unjudged, result = None, "", None
        self.current.probe = probe = suite.Probe(pyfuncitem.name, suite.SESSION.plan, suite.SESSION.target())
        try:
            result = yield
            probe.finish()
        except suite.Violated as violated:
            found = violated.found
        except (suite.CouldNotJudge, suite.Unjudged) as error:
            unjudged = str(error)
        finally:  # user properties cross process borders and stand in JUnit reports
            self.current.probe = None
            summary = suite.to_property(probe.summary(unjudged))
            pyfuncitem.user_properties.append((PROPERTY, summary))
        if found is not None:  # outside the except clause: no "During handling of ..."
            pytest.fail(self._explanation(suite, probe, found), pytrace=False)
        if unjudged:
            pytest.fail(f"could not judge: {unjudged}", pytrace=False)
        return result

    def _explanation(self, suite: Any, probe: Probe, found: Any) -> str:
        try:
            failure = probe.failure(found)
        except suite.CouldNotJudge as error:  # the broker went away meanwhile; what it did before still stands
            return f"violated: {', '.join(found.judgement.failed)}; could not be made smaller: {error}"
        text: str = suite.explain(failure, suite.SESSION.plan, width=_width())
        return text

    # Reports, in the controller

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collects the verdicts of workloads, wherever they ran."""
        if report.when == "call" and not self._worker:
            for name, value in report.user_properties:
                if name == PROPERTY:
                    self._summaries[report.nodeid] = self.suite().from_property(value)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """2 where no test failed but workloads that came to no verdict."""
        unjudged = sum(bool(summary.unjudged) for summary in self._summaries.values())
        if exitstatus == pytest.ExitCode.TESTS_FAILED and session.testsfailed == unjudged:
            session.exitstatus = COULD_NOT_JUDGE

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table of verdicts of all workloads."""
        if not self._summaries:
            return
        suite = self.suite()
        terminalreporter.section("broker contract")
        for line in suite.report(suite.total(self._summaries.values()), width=_width()):
            terminalreporter.write_line(line)


def _width() -> int:
    """Columns of the terminal; 120 where the output goes elsewhere."""
    if not sys.stdout.isatty():
        return PIPED_WIDTH
    return max(60, shutil.get_terminal_size().columns)
