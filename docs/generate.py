"""Writes the generated parts of the documentation: docs/rules.md, and the outputs that README.md shows.

    python docs/generate.py           writes them
    python docs/generate.py --check   says what is out of date, exit code 1

An output stands between `<!-- output: COMMAND -->` and `<!-- end of output -->`, and is what that command prints. The
word DEFECT in a command stands for an engine with a seeded defect, which a reader does not have to know. Figures, and
what depends on the drawn schedules, may differ from run to run; `shape` is what must not.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RULES = ROOT / "docs" / "rules.md"
DEFECT = "tests.quality.defects:SharedCursor"

OUTPUT = re.compile(
    r"(<!-- output: (?P<command>.+?) -->\n```\n)(?P<text>.*?)(```\n<!-- end of output -->\n)", re.DOTALL
)
DRAWN = ("never", "where", "expected", "observed", "schedule", "found", "history", "replay", "not", "error:")
"""First words of the lines whose text depends on the schedules that were drawn."""


def run(command: str) -> str:
    """What a `broker-contract` command prints, in a folder of its own."""
    name, *arguments = shlex.split(command.replace("DEFECT", DEFECT))
    if name != "broker-contract":
        raise ValueError(f"{command!r} does not begin with broker-contract")
    code = "from contract.cli import main; main()"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
    if done.returncode not in (0, 1) or done.stderr:
        raise RuntimeError(f"{command!r} ended with {done.returncode}: {done.stderr}")
    return done.stdout.replace(f" --broker-engine {DEFECT}", "")


def shape(output: str) -> list[str]:
    """What two runs of one command have in common: the lines without figures, the drawn ones by their first word."""
    lines: list[str] = []
    for line in output.splitlines():
        words = line.split()
        if not words or line.startswith("  "):
            continue  # an empty line, or the rest of a wrapped one
        kept = words[:1] if words[0] in DRAWN else words
        lines.append(re.sub(r"\d[\d,.]*", "N", " ".join(kept)))
    return lines


def readme(text: str) -> str:
    """README.md with the outputs of now, each only where its shape has changed."""

    def replaced(match: re.Match[str]) -> str:
        fresh = run(match["command"])
        kept = match["text"] if shape(match["text"]) == shape(fresh) else fresh
        return match[1] + kept + match[4]

    return OUTPUT.sub(replaced, text)


def main() -> int:
    """Writes or checks; returns the exit code."""
    stale: list[str] = []
    for path, fresh in ((RULES, run("broker-contract rules --markdown")), (README, readme(README.read_text()))):
        if path.exists() and path.read_text() == fresh:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if "--check" not in sys.argv[1:]:
            path.write_text(fresh)
    if stale:
        print("\n".join(stale))
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
