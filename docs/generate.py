"""Writes the generated parts of the documentation: docs/rules.md, and the outputs that README.md shows.

    python docs/generate.py           writes them
    python docs/generate.py --check   says what is out of date, exit code 1

An output stands between `<!-- output: COMMAND -->` and `<!-- end of output -->`, and is what that command prints.
Figures, and what depends on the drawn schedules, may differ from run to run; `shape` is what must not. The failure that
README.md explains is a replay file of this script, played on a broker with a seeded defect.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from contract import replay_file
from contract.replay_file import Replay
from strategies.schedule import Group, Item, Pop, Push, Schedule

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RULES = ROOT / "docs" / "rules.md"
DEFECT = "--broker-engine defects.leases:PushBreaksLease"
DEFECTS = ROOT / "tests" / "quality"

OUTPUT = re.compile(
    r"(<!-- output: (?P<command>.+?) -->\n```\n)(?P<text>.*?)(```\n<!-- end of output -->\n)", re.DOTALL
)
OPTIONAL = ("never", "not", "skipped:")
"""First words of lines that a run may have or not have."""

PUSH_BREAKS_LEASE = Replay(
    replay=replay_file.REPLAY_VERSION,
    suite="0.1.0",
    rule="lease/exclusive",
    signature="",
    target="reference broker with PushBreaksLease (simulated)",
    seed=0,
    expected="",
    observed="",
    schedule=Schedule(
        steps=(
            Push((Item(),)),
            Pop(label=0, partition=0),
            Push((Item(),)),
            Pop(label=1, worker=1, partition=0),
        ),
        groups=(Group("G", "all"),),
    ),
)


def version() -> str:
    """The version that the next release has, whatever is installed here."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def run(command: str) -> str:
    """What a `broker-contract` command prints, in a folder that holds the replay file of the README."""
    name, *arguments = shlex.split(command)
    if name != "broker-contract":
        raise ValueError(f"{command!r} does not begin with broker-contract")
    if "replay" in arguments:
        arguments += shlex.split(DEFECT)
    with tempfile.TemporaryDirectory() as folder:
        if "replay" in arguments:
            replay_file.write(PUSH_BREAKS_LEASE, Path(folder) / "failures")
        done = subprocess.run(
            [sys.executable, "-c", "from contract.cli import main; main()", *arguments],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(DEFECTS)))},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
    if done.returncode not in (0, 1) or done.stderr:
        raise RuntimeError(f"{command!r} ended with {done.returncode}: {done.stderr}{done.stdout}")
    said = re.sub(r"\Abroker-contract \S+", f"broker-contract {version()}", done.stdout)
    return said.replace(f" {DEFECT}", "")


def shape(output: str) -> list[str]:
    """What two runs of one command have in common: lines without figures, and of several verdicts the gravest."""
    lines: list[str] = []
    for line in output.splitlines():
        words = line.split()
        if not words or words[0] in OPTIONAL or line.startswith("  "):
            continue  # an empty line, one that need not be there, or the rest of a wrapped one
        text = re.sub(r"(FAIL|PASS) \d+(, [A-Z ]+ \d+)*(?= [\d,]+$)", r"\1", " ".join(words))
        text = re.sub(r" held.*(?= exit \d$)", " held", text)
        lines.append(re.sub(r"\d[\d,.]*", "N", text))
    return lines


def readme(text: str) -> str:
    """README.md with the outputs of now, each only where its shape has changed."""

    def replaced(match: re.Match[str]) -> str:
        fresh = run(match["command"])
        kept = match["text"] if shape(match["text"]) == shape(fresh) else fresh
        return match[1] + kept + match[4]

    return OUTPUT.sub(replaced, text)


def stale() -> dict[Path, str]:
    """The pages that are out of date, with what they should hold."""
    fresh = {RULES: run("broker-contract rules --markdown"), README: readme(README.read_text())}
    return {path: text for path, text in fresh.items() if not path.exists() or path.read_text() != text}


def main() -> int:
    """Writes or checks; returns the exit code."""
    check = "--check" in sys.argv[1:]
    for path, text in (pages := stale()).items():
        print(path.relative_to(ROOT))
        if not check:
            path.write_text(text)
    return 1 if check and pages else 0


if __name__ == "__main__":
    sys.exit(main())
