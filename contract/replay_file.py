"""The file that holds one failure: a schedule of a few steps, and what was wrong with it.

Readable JSON, so that it can be looked at, shortened by hand, attached to a bug report and kept under version control.
`broker-contract replay FILE` plays it again.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from contract.errors import CouldNotJudge
from strategies import schedule as schedules
from strategies.schedule import Schedule

REPLAY_VERSION = 1


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One failure. `replay` is the version of the format; `expected` and `observed` are for the reader only.

    `target` says what broke the rule when the file was written; a replay may be played on any target. `seed` is the
    seed with which the schedule was played.
    """

    replay: int
    suite: str
    rule: str
    signature: str
    target: str
    seed: int
    expected: str
    observed: str
    schedule: Schedule


def file_name(rule: str, schedule: Schedule) -> str:
    """The name of the file of a failure: the rule, and four hexadecimal digits of the schedule.

    The same failure found again writes the same file.
    """
    digest = hashlib.sha256(schedules.to_json(schedule)).hexdigest()
    return f"{rule.replace('/', '-')}-{digest[:4]}.json"


def write(replay: Replay, folder: str | os.PathLike[str]) -> Path:
    """Writes a failure into `folder` (made where it is missing) and returns the path.

    Raises `CouldNotJudge` where the file cannot be written.
    """
    path = Path(folder) / file_name(replay.rule, replay.schedule)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(replay), indent=2) + b"\n")
    except OSError as error:
        raise CouldNotJudge(
            f"cannot write the replay file {os.fspath(path)!r}: {error.strerror}; "
            "name another folder with --failures-dir"
        ) from error
    return path


def read(path: str | os.PathLike[str]) -> Replay:
    """Reads what `write` wrote. Raises `CouldNotJudge` that names the file, the place and the reason."""
    name = os.fspath(path)
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise CouldNotJudge(
            f"cannot read the replay file {name!r}: {error.strerror}; name a file that a failing run wrote"
        ) from error
    _check_version(text, name)
    try:
        return msgspec.json.decode(text, type=Replay)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CouldNotJudge(
            f"the replay file {name!r} is broken: {error}; take the file that `broker-contract run` wrote, "
            "or run again with its seed"
        ) from error


def _check_version(text: bytes, name: str) -> None:
    """Says "unknown version" before anything else, since another version may have other fields."""
    try:
        version = msgspec.json.decode(text, type=dict[str, msgspec.Raw]).get("replay")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    if version is not None and bytes(version) != str(REPLAY_VERSION).encode():
        raise CouldNotJudge(
            f"the replay file {name!r} has version {bytes(version)[:40].decode('utf-8', 'replace')}; this suite reads "
            f"version {REPLAY_VERSION}, use the suite that wrote it"
        )
