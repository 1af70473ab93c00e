"""Plays every finding in docs/findings again on a running broker, and writes docs/findings.md.

    python tests/queen/findings.py --url URL [--times 32] [--write docs/findings.md]
        [--storage-stop-cmd COMMAND --storage-start-cmd COMMAND]

A finding is a replay file: a schedule, the rule it violates, and the signature of the deviation. One line each says
REPRODUCED or GONE, with how many of how many plays showed it. What needs an outage of the storage is played less often,
and not at all without the two commands: the page then keeps what it says of it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from contract import replay_file
from contract.hooks import Hooks
from contract.judge import judge
from contract.profile import PROFILES, Deviation
from contract.replay_file import Replay
from contract.reports.steps import notation
from contract.rules import RULES
from contract.targets import Url
from strategies.schedule import StorageOutage, flatten

ROOT = Path(__file__).parents[2]
FINDINGS = ROOT / "docs" / "findings"
OUTAGES = 3
"""Plays of a finding that stops the storage."""


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


def outage(replay: Replay) -> bool:
    """Whether the storage is stopped in it, which keeps every other play waiting."""
    return any(isinstance(leaf, StorageOutage) for leaf in flatten(replay.schedule.steps))


def kept(page: Path | None, name: str) -> str:
    """The section that a page has for a finding; "" where there is none."""
    if page is None or not page.exists():
        return ""
    sections = page.read_text(encoding="utf-8").split("## ")
    return next(("## " + section.rstrip("\n") + "\n" for section in sections if section.startswith(f"{name}\n")), "")


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
    parser.add_argument("--storage-stop-cmd")
    parser.add_argument("--storage-start-cmd")
    options = parser.parse_args()
    hooks = Hooks(storage_stop_cmd=options.storage_stop_cmd, storage_start_cmd=options.storage_start_cmd)
    target = Url(options.url, hooks=hooks)
    target.probe()
    version = str(target.capabilities.get("version", "unknown"))
    sections = []
    for path in sorted(FINDINGS.glob("*.json")):
        replay = replay_file.read(path)
        if outage(replay) and not target.can("storage-outage"):
            print(f"{'SKIPPED':10} {path.stem:24} needs --storage-stop-cmd and --storage-start-cmd", flush=True)
            sections.append(kept(options.write, path.stem))
            continue
        times = min(options.times, OUTAGES) if outage(replay) else options.times
        shown = count(target, replay, times)
        print(f"{'REPRODUCED' if shown else 'GONE':10} {path.stem:24} {shown} of {times}", flush=True)
        sections.append(entry(path.stem, replay, shown, times, version))
    if options.write:
        head = [
            "# Findings on real brokers",
            "",
            "Written by `python tests/queen/findings.py --url URL --write docs/findings.md`, with the commands that",
            "stop and start its storage. Where a real broker and the contract disagree and the broker is wrong; each",
            "is a known deviation of its profile (`contract/profile.py`), reported under its own signature and not",
            "counted as a failure.",
            "",
        ]
        options.write.write_text("\n".join([*head, *sections]), encoding="utf-8")


if __name__ == "__main__":
    main()
