"""How this suite and two peers find the seeded defects, compared in one run on this machine.

    python bench/peers.py [--seeds 1] [--budget 4] [--processes 2] [--tools TOOL,...] [--details]
        [--write PAGE] [DEFECT ...]

1. simulated: this suite as `broker-contract run` plays it, in this process on a virtual clock.
2. command: this suite as `broker-contract run --broker-cmd` plays it, over HTTP against the broker as a process. That
   takes half a minute for a defect, so it gets the twenty seconds of a default run for each, and tries every eighth
   defect where none is named.
3. hypothesis: a plain state machine over httpx against such a process (plain_machine.py).
4. fast-check: the same in JavaScript (fast_check/); skipped where there is no node, or no npm to install it with.

The two peers know the same rules, as many as a careful engineer would write first; they neither kill the broker nor
fail its storage, seek nowhere, and send no two requests at once. Every tool must find nothing in the correct broker
first. A hunt ends with the first failure, of whatever kind, and what the tool makes of it, or after `--budget` seconds;
the peers get six more to make it small. All of it takes seven to nine minutes. Starting processes and installing is not
measured. A schedule of this suite ends with waiting and reading everything again, which is no step of it; a storm of
several hundred requests is one step.

Figures are medians. "cut off": hunts whose time to make a failure small was used up. "alone": found by the first of the
two tools only, and by the second only. Exit code 1 where a tool accused the correct broker.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hypothesis import __version__ as hypothesis_version

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
sys.path[:0] = [str(ROOT / "tests" / "quality"), str(ROOT)]

import plain_machine  # noqa: E402

from contract.errors import CouldNotJudge  # noqa: E402
from contract.explore import Exploration, explore  # noqa: E402
from contract.targets import Command, Simulated  # noqa: E402
from defects import DEFECTS  # noqa: E402
from strategies.schedule import flatten  # noqa: E402

CONTROL = "(correct)"
"""Stands for the broker without a defect."""

CONTROL_FACTOR = 2
"""The correct broker is played so many times as long as a defect."""

PEER_SHRINK_S = 6.0
"""How long a peer may go on after the budget to make a failure small. This suite has limits of its own."""

COMMAND_BUDGET_S = 20.0
COMMAND_SAMPLE = 8
"""What a default run takes, and one defect in so many where none is named."""

FIRST_GOAL_S, MINIMAL_GOAL_S = 0.5, 1.0
"""Goals for the medians of the simulated suite over all defects that need no concurrency."""

FAST_CHECK = BENCH / "fast_check"
INSTALL_LIMIT_S = 180
MEDIAN_LINE = "{:<12} {:>10} {:>15} {:>10} {:>7} {:>8}"
RATIO_LINE = "{:<24} {:>13} {:>9} {:>7} {:>15} {:>13}"


@dataclass(frozen=True, slots=True)
class Hunt:
    """One defect under one seed. Seconds are since the start of the hunt; None where nothing was found."""

    tool: str
    defect: str
    seed: int
    first_s: float | None
    minimal_s: float = 0.0
    steps: int = 0
    says: str = ""
    cut_off: bool = False
    """The time to make it small was used up: it might have come out smaller."""

    @property
    def key(self) -> tuple[str, int]:
        """What was hunted."""
        return self.defect, self.seed

    def line(self) -> str:
        """One line of the details."""
        if self.first_s is None:
            return f"  {self.defect:<28} {self.tool:<11} -  {self.says[:60]}".rstrip()
        found = f"{self.first_s:6.2f} s, minimal {self.minimal_s:6.2f} s, {self.steps:2} steps"
        return f"  {self.defect:<28} {self.tool:<11} {found}  {self.says[:60]}"


class Unavailable(Exception):
    """A tool cannot be had here; the message says why."""


Tool = Callable[[str, int, float], Hunt]
"""Takes a defect, a seed and a budget in seconds."""


# The broker -------------------------------------------------------------------------------------------------------


def engine_options(defect: str) -> list[str]:
    """The options that make the broker's process a defective one."""
    return [] if defect == CONTROL else ["--engine", DEFECTS[defect].path]


@contextlib.contextmanager
def broker(defect: str) -> Iterator[str]:
    """The broker as a process on a free port of 127.0.0.1; gives its URL."""
    with tempfile.TemporaryDirectory(prefix="broker-contract-bench-") as data:
        command = [sys.executable, "-m", "reference_broker", "--data", data, *engine_options(defect)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield process.stdout.readline().split()[-1]
            finally:
                process.terminate()


# The tools --------------------------------------------------------------------------------------------------------


def by_suite(tool: str, target: Simulated | Command, defect: str, seed: int, budget_s: float) -> Hunt:
    """Plays schedules until one has failed and is small. A broker that cannot be judged at all is nothing found."""
    try:
        target.capabilities  # noqa: B018  it starts and probes the broker
        run: Exploration = explore(target, seed=seed, max_time_s=budget_s, enough=lambda _: True)
    except CouldNotJudge as error:
        return Hunt(tool, defect, seed, None, says=f"could not judge: {error}")
    if not run.failures:
        return Hunt(tool, defect, seed, None)
    found = run.failures[0]
    steps = sum(1 for _ in flatten(found.schedule.steps))
    return Hunt(tool, defect, seed, found.seconds_to_first, found.seconds_to_minimal, steps, found.violation.rule)


def simulated(defect: str, seed: int, budget_s: float) -> Hunt:
    """This suite on a virtual clock."""
    engine = None if defect == CONTROL else DEFECTS[defect].engine
    return by_suite("simulated", Simulated(engine=engine), defect, seed, budget_s)


def command(defect: str, seed: int, budget_s: float) -> Hunt:
    """This suite on a process that it starts itself, and may kill."""
    words = [sys.executable, "-m", "reference_broker", *engine_options(defect)]
    target = Command(f"{shlex.join(words)} --data {{data}} --port {{port}}")
    try:
        return by_suite("command", target, defect, seed, max(budget_s, COMMAND_BUDGET_S))
    finally:
        target.close()


def hypothesis(defect: str, seed: int, budget_s: float) -> Hunt:
    """The plain state machine."""
    with broker(defect) as url:
        watch = plain_machine.hunt(url, seed, budget_s, PEER_SHRINK_S)
    return Hunt("hypothesis", defect, seed, watch.first_s, watch.now_s(), watch.steps, watch.error, watch.cut_off)


def fast_check(folder: Path, defect: str, seed: int, budget_s: float) -> Hunt:
    """The commands of fast-check, installed in a folder."""
    with broker(defect) as url:
        words = ["node", "hunt.mjs", url, str(seed), str(budget_s), str(PEER_SHRINK_S)]
        limit_s = budget_s + PEER_SHRINK_S + 30
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=limit_s)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(words)} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    said = json.loads(done.stdout)
    return Hunt(
        "fast-check", defect, seed, said["first_s"], said["end_s"], said["steps"], said["error"], said["cut_off"]
    )


def node_version() -> str:
    """The version of node."""
    return subprocess.run(["node", "--version"], capture_output=True, text=True, timeout=30).stdout.strip()


def install_fast_check(folder: Path) -> str:
    """Installs fast-check into a folder, never into the tree; answers its version. Raises `Unavailable`."""
    for name in ("node", "npm"):
        if shutil.which(name) is None:
            raise Unavailable(f"there is no {name}")
    for path in (FAST_CHECK / "package.json", *FAST_CHECK.glob("*.mjs")):
        shutil.copy(path, folder)
    words = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel", "error"]
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=INSTALL_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"npm install was not done after {INSTALL_LIMIT_S} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[0]
        raise Unavailable(f"npm install failed with exit code {done.returncode}: {last[:200]}")
    package = json.loads((folder / "node_modules" / "fast-check" / "package.json").read_text())
    return str(package["version"])


NAMES = ("simulated", "command", "hypothesis", "fast-check")


@contextlib.contextmanager
def tools(names: Sequence[str]) -> Iterator[tuple[dict[str, Tool], str]]:
    """The tools that can be had here, and the version of fast-check; one line where it cannot be had."""
    with tempfile.TemporaryDirectory(prefix="broker-contract-bench-") as folder:
        version = ""
        found: dict[str, Tool] = {"simulated": simulated, "command": command, "hypothesis": hypothesis}
        if "fast-check" in names:
            try:
                version = install_fast_check(Path(folder))
            except Unavailable as why:
                print(f"SKIP fast-check: {why}", flush=True)
            else:
                found["fast-check"] = partial(fast_check, Path(folder))
        yield {name: found[name] for name in names if name in found}, version


# The tables -------------------------------------------------------------------------------------------------------


def found_by(hunts: Sequence[Hunt], tool: str) -> dict[tuple[str, int], Hunt]:
    """What a tool found."""
    return {hunt.key: hunt for hunt in hunts if hunt.tool == tool and hunt.first_s is not None}


def medians(hunts: Sequence[Hunt], tool: str) -> str:
    """One line: how much a tool found, and the medians over that."""
    tried = sum(hunt.tool == tool for hunt in hunts)
    found = found_by(hunts, tool).values()
    count = f"{len(found)} of {tried}"
    if not found:
        return MEDIAN_LINE.format(tool, count, "-", "-", "-", "-")
    first_s = statistics.median(hunt.first_s or 0.0 for hunt in found)
    minimal_s = statistics.median(hunt.minimal_s for hunt in found)
    steps = statistics.median(hunt.steps for hunt in found)
    cut_off = sum(hunt.cut_off for hunt in found)
    return MEDIAN_LINE.format(tool, count, f"{first_s:.2f} s", f"{minimal_s:.2f} s", f"{steps:g}", cut_off)


def ratios(hunts: Sequence[Hunt], tool: str, own: str) -> str:
    """One line: a tool's figures as multiples of another's over the hunts in which both found something: medians."""
    theirs, ours = found_by(hunts, tool), found_by(hunts, own)
    tried = {hunt.key for hunt in hunts if hunt.tool == own} & {hunt.key for hunt in hunts if hunt.tool == tool}
    both = [(theirs[key], ours[key]) for key in theirs if key in ours]
    alone = f"{len(theirs.keys() & tried - ours.keys())}, {len(ours.keys() & tried - theirs.keys())}"
    if not both:
        return RATIO_LINE.format(f"{tool} : {own}", "-", "-", "-", "0 of 0", alone)
    first = statistics.median((them.first_s or 0.0) / (us.first_s or 1e-6) for them, us in both)
    minimal = statistics.median(them.minimal_s / us.minimal_s for them, us in both)
    steps = statistics.median(them.steps / us.steps for them, us in both)
    sooner = sum((them.first_s or 0.0) < (us.first_s or 0.0) for them, us in both)
    times = f"{first:.2f} x", f"{minimal:.2f} x", f"{steps:.1f} x"
    return RATIO_LINE.format(f"{tool} : {own}", *times, f"{sooner} of {len(both)}", alone)


def goals(hunts: Sequence[Hunt]) -> Iterator[str]:
    """The medians of the simulated suite over the sequential defects, beside what they should be."""
    found = found_by([hunt for hunt in hunts if not DEFECTS[hunt.defect].concurrent], "simulated").values()
    if found:
        first_s = statistics.median(hunt.first_s or 0.0 for hunt in found)
        minimal_s = statistics.median(hunt.minimal_s for hunt in found)
        yield (
            f"simulated, over {len(found)} hunts for sequential defects: first failure {first_s:.2f} s "
            f"(goal {FIRST_GOAL_S:g}), minimal {minimal_s:.2f} s (goal {MINIMAL_GOAL_S:g})"
        )


def not_found(hunts: Sequence[Hunt], tool: str) -> Iterator[str]:
    """One line: what a tool missed."""
    found = found_by(hunts, tool)
    missed = dict.fromkeys(hunt.defect for hunt in hunts if hunt.tool == tool and hunt.key not in found)
    if missed:
        yield f"not found by {tool}: {', '.join(missed)}"


def report(hunts: Sequence[Hunt]) -> Iterator[str]:
    """The lines below the details."""
    played = [name for name in NAMES if any(hunt.tool == name for hunt in hunts)]
    yield MEDIAN_LINE.format("tool", "found", "first failure", "minimal", "steps", "cut off")
    yield from (medians(hunts, tool) for tool in played)
    pairs = [(tool, own) for own in NAMES[:2] for tool in NAMES[1:] if tool != own and {tool, own} <= set(played)]
    if pairs:
        yield ""
        yield RATIO_LINE.format("where both found it", "first failure", "minimal", "steps", "first is sooner", "alone")
        yield from (ratios(hunts, tool, own) for tool, own in pairs)
    yield ""
    yield from goals(hunts)
    yield from peer_is_better(hunts)
    for tool in played:
        yield from not_found(hunts, tool)


def peer_is_better(hunts: Sequence[Hunt]) -> Iterator[str]:
    """One line for each peer and tool of ours: in what the peer was better in most hunts that both ended."""
    for peer in NAMES[2:]:
        for own in NAMES[:2]:
            theirs, ours = found_by(hunts, peer), found_by(hunts, own)
            both = [(theirs[key], ours[key]) for key in theirs if key in ours]
            counts = {
                "sooner": sum((them.first_s or 0.0) < (us.first_s or 0.0) for them, us in both),
                "sooner minimal": sum(them.minimal_s < us.minimal_s for them, us in both),
                "with fewer steps": sum(them.steps < us.steps for them, us in both),
            }
            better = [f"{what} in {count} of {len(both)}" for what, count in counts.items() if count * 2 > len(both)]
            if better:
                yield f"{peer} is better than {own}: {', '.join(better)}"


def page(lines: Sequence[str], version: str) -> str:
    """The page of the documentation."""
    _, _, explained = (__doc__ or "").split("\n\n", 2)
    node = f", Node {node_version()} with fast-check {version}" if version else ""
    made = f"Python {platform.python_version()}, Hypothesis {hypothesis_version}{node}"
    return "\n".join(
        [
            "# Compared with peers",
            "",
            "Printed by `python bench/peers.py --write docs/peers.md`; do not edit.",
            "",
            explained,
            f"{made}, on {os.cpu_count()} cores.",
            "",
            "```",
            *lines,
            "```",
            "",
        ]
    )


# Command ----------------------------------------------------------------------------------------------------------


def control(pool: ProcessPoolExecutor, found: dict[str, Tool], budget_s: float) -> bool:
    """Plays the correct broker with each tool; False where one accused it."""
    jobs = {name: pool.submit(tool, CONTROL, 0, budget_s * CONTROL_FACTOR) for name, tool in found.items()}
    for name, job in jobs.items():
        accused = job.result().first_s is not None
        says = f"ACCUSES IT: {job.result().says}" if accused else "no failure"
        print(f"{name:<11} on the correct broker: {says}", flush=True)
    return all(job.result().first_s is None for job in jobs.values())


def compare(
    pool: ProcessPoolExecutor, found: dict[str, Tool], named: Sequence[str], seeds: int, budget_s: float
) -> Iterator[Hunt]:
    """Hunts each defect with each tool in turn, so that a noisy machine disturbs all alike."""
    jobs = [
        pool.submit(tool, defect, seed, budget_s)
        for seed in range(seeds)
        for number, defect in enumerate(named or DEFECTS)
        for name, tool in found.items()
        if named or name != "command" or number % COMMAND_SAMPLE == 0
    ]
    try:
        for job in jobs:
            yield job.result()
    finally:  # after Ctrl-C nothing more is begun
        for job in jobs:
            job.cancel()


def arguments() -> argparse.Namespace:
    """The options, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("defects", nargs="*", metavar="DEFECT", help="default: all")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--budget", type=float, default=4.0, metavar="SECONDS", help="for each defect and tool")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="hunts at once; default 2")
    parser.add_argument("--tools", default=",".join(NAMES), help=f"default: {','.join(NAMES)}")
    parser.add_argument("--details", action="store_true", help="one line for each defect and tool")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="writes the page of the documentation")
    options = parser.parse_args()
    options.tools = options.tools.split(",")
    for name, known in [(name, DEFECTS) for name in options.defects] + [(name, NAMES) for name in options.tools]:
        if name not in known:
            parser.error(f"nothing is called {name!r}; there are {', '.join(known)}")
    return options


def main() -> int:
    """Runs the comparison; returns the exit code."""
    options = arguments()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "quality")])
    begun_s = time.monotonic()
    hunts: list[Hunt] = []
    with tools(options.tools) as (found, version), ProcessPoolExecutor(options.processes) as pool:
        fair = control(pool, found, options.budget)
        for hunt in compare(pool, found, options.defects, options.seeds, options.budget):
            hunts.append(hunt)
            if options.details:
                print(hunt.line(), flush=True)
    lines = [*report(hunts), f"{len(hunts)} hunts, {options.processes} at once, {time.monotonic() - begun_s:.0f} s"]
    print("", *lines, sep="\n")
    if options.write:
        options.write.write_text(page(lines, version), encoding="utf-8")
    return 0 if fair else 1


if __name__ == "__main__":
    sys.exit(main())
