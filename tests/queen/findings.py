"""Plays every finding in docs/findings again on a running broker, and writes docs/findings.md.

    python tests/queen/findings.py --url URL [--times 32] [--write docs/findings.md]

A finding is a replay file: a schedule, the rule it violates, and the signature of the deviation. One line each says
REPRODUCED or GONE, with how many of how many plays showed it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from contract import replay_file
from contract.judge import judge
from contract.profile import PROFILES, Deviation
from contract.replay_file import Replay
from contract.reports.steps import notation
from contract.rules import RULES
from contract.targets import Url

ROOT = Path(__file__).parents[2]
FINDINGS = ROOT / "docs" / "findings"


def reasons() -> dict[str, str]:
    """What each known deviation is, by its signature."""
    every: list[Deviation] = [deviation for profile in PROFILES.values() for deviation in profile.deviations]
    return {deviation.signature: deviation.reason for deviation in every}


def count(target: Url, replay: Replay, times: int) -> int:
    """How many of `times` plays, side by side, show the finding."""
    histories = target.play_many([replay.schedule] * times, seed=replay.seed)
    shown = 0
    for history in histories:
        verdict = judge(history, target.profile)[replay.rule]
        found = (*verdict.violations, *verdict.known)
        shown += any(violation.signature == replay.signature for violation in found)
    return shown


def entry(name: str, replay: Replay, shown: int, times: int, version: str) -> str:
    """One section of the page."""
    state = "REPRODUCED" if shown else "GONE"
    return "\n".join(
        [
            f"## {name}",
            "",
            f"- {state} on version {version}: {shown} of {times}",
            f"- rule `{replay.rule}`, contract {RULES[replay.rule].clause}, signature `{replay.signature}`",
            f"- the broker {reasons().get(replay.signature, 'deviates')}",
            f"- expected: {replay.expected}",
            f"- observed: {replay.observed}",
            f"- schedule: `{notation(replay.schedule)}`",
            f"- file: [`docs/findings/{name}.json`](findings/{name}.json)",
            "",
        ]
    )


def main() -> None:
    """Plays, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--times", type=int, default=32)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    target = Url(options.url)
    target.probe()
    version = str(target.capabilities.get("version", "unknown"))
    sections = []
    for path in sorted(FINDINGS.glob("*.json")):
        replay = replay_file.read(path)
        shown = count(target, replay, options.times)
        print(f"{'REPRODUCED' if shown else 'GONE':10} {path.stem:24} {shown} of {options.times}", flush=True)
        sections.append(entry(path.stem, replay, shown, options.times, version))
    if options.write:
        head = [
            "# Findings on real brokers",
            "",
            "Written by `python tests/queen/findings.py --url URL --write docs/findings.md`. Where a real broker and",
            "the contract disagree and the broker is wrong; each is a known deviation of its profile",
            "(`contract/profile.py`), reported under its own signature and not counted as a failure.",
            "",
        ]
        options.write.write_text("\n".join([*head, *sections]), encoding="utf-8")


if __name__ == "__main__":
    main()
