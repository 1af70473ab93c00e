"""What a run says on a terminal and in a log: plain text of a given width.

Every function is pure and returns a string; colour is put on it by the command line. Names, payloads and answers are
untrusted text: `clean` takes the control characters out of everything that comes from a broker or from a file.
"""

from __future__ import annotations

import shlex
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from contract.checks.facts import QUEUE_MODE
from contract.history import History
from contract.reports.steps import NO_GROUP, notation
from contract.rules import RULES
from contract.verdicts import RuleVerdict, Verdict, Violation
from contract.version import suite_version
from strategies.schedule import Schedule

if TYPE_CHECKING:
    from contract.explore import Exploration, Failure

WIDTH = 120
LONGEST = 300
"""So many characters of one untrusted text are shown."""

HELD, VIOLATED, COULD_NOT_JUDGE = 0, 1, 2

OF_A_GROUP = ("group", "lease", "delivery", "ack")
"""Families of rules that speak of one group, so that no name means the group-less queue mode."""

ORDER = (Verdict.FAIL, Verdict.ERROR, Verdict.PASS, Verdict.SKIP, Verdict.NOT_EXERCISED)


def clean(text: str, *, longest: int = LONGEST) -> str:
    """`text` on one line with nothing in it that moves a cursor, changes a colour or the direction of writing."""
    shown = text if len(text) <= longest else text[:longest] + "..."
    return "".join(character if _harmless(character) else _escaped(character) for character in shown)


def _harmless(character: str) -> bool:
    """Not a control, format, surrogate, private or unassigned character, nor a separator of lines."""
    category = unicodedata.category(character)
    return category[0] != "C" and category not in ("Zl", "Zp")


def _escaped(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


# The run ----------------------------------------------------------------------------------------------------------


def heading(exploration: Exploration, *, width: int = WIDTH) -> str:
    """The two lines above the table: what was run on what, and how much of it."""
    reached = len(exploration.situations)
    first = (
        f"broker-contract {suite_version()}  target: {clean(exploration.target)}  "
        f"profile {clean(exploration.profile)}  seed {exploration.seed}"
    )
    second = (
        f"{exploration.schedules:,} schedules  {exploration.requests:,} requests  {exploration.seconds:.0f} s  "
        f"situations {reached}/{reached + len(exploration.never_reached)}"
    )
    return "\n".join([*_wrap(first, width, hanging=1), *_wrap(second, width, first=1)])


def never_reached(exploration: Exploration, *, width: int = WIDTH) -> str:
    """The situations that no schedule came to; empty where all were reached."""
    return _list("never reached", map(clean, exploration.never_reached), width, separator="; ")


def table(rules: Sequence[RuleVerdict], *, width: int = WIDTH) -> str:
    """The verdict table, one line a family, and below it what needs words: errors, skips, rules without evidence."""
    families: dict[str, list[RuleVerdict]] = {}
    for rule in rules:
        families.setdefault(rule.rule.split("/", 1)[0], []).append(rule)
    rows = [(family, str(len(members)), _verdicts(members), _evidence(members)) for family, members in families.items()]
    lines = _columns([("family", "rules", "verdict", "evidence (compared)"), *rows])
    return "\n".join([*lines, *_remarks(rules, width)])


def _columns(rows: Sequence[tuple[str, str, str, str]]) -> Iterator[str]:
    """Names to the left, numbers to the right; a reason in the place of a number may be longer than its column."""
    first, second, third = (max(len(row[column]) for row in rows) for column in range(3))
    for family, count, verdict, evidence in rows:
        number = evidence[0].isdigit() or evidence == rows[0][3]
        shown = f"{evidence:>{len(rows[0][3])}}" if number else evidence
        yield f" {family:<{first}}  {count:>{second}}  {verdict:<{third}}  {shown}"


def _verdicts(members: Sequence[RuleVerdict]) -> str:
    """ "PASS" where all agree, else "FAIL 1, PASS 4"; a FAIL is always counted."""
    counts = Counter(member.verdict for member in members)
    if len(counts) == 1 and Verdict.FAIL not in counts:
        return str(members[0].verdict)
    return ", ".join(f"{verdict} {counts[verdict]}" for verdict in ORDER if counts[verdict])


def _evidence(members: Sequence[RuleVerdict]) -> str:
    """How much was compared, or the one reason why a whole family was skipped."""
    reason = _common_skip(members)
    return f"({reason})" if reason else f"{sum(member.compared for member in members):,}"


def _common_skip(members: Sequence[RuleVerdict]) -> str:
    reasons = {clean(member.reason, longest=60) if member.verdict is Verdict.SKIP else "" for member in members}
    return reasons.pop() if len(reasons) == 1 else ""


def _remarks(rules: Sequence[RuleVerdict], width: int) -> Iterator[str]:
    """One entry a reason, for what the table only counts."""
    yield from _skipped(rules, width)
    for rule in rules:
        if rule.verdict is Verdict.ERROR:
            yield from _wrap(f"error: {rule.rule}: {clean(rule.reason)}", width, first=1)
    silent = [rule.rule for rule in rules if rule.verdict is Verdict.NOT_EXERCISED]
    yield from _list("not exercised", silent, width).splitlines()
    yield from _known(rules, width)


def _skipped(rules: Sequence[RuleVerdict], width: int) -> Iterator[str]:
    """The reasons of the skips that the table has no room for."""
    by_reason: dict[str, list[str]] = {}
    for rule in rules:
        family = [other for other in rules if other.rule.split("/", 1)[0] == rule.rule.split("/", 1)[0]]
        if rule.verdict is Verdict.SKIP and not _common_skip(family):
            by_reason.setdefault(clean(rule.reason) or "no reason given", []).append(rule.rule)
    for reason, names in by_reason.items():
        yield from _wrap(f"skipped: {', '.join(names)}: {reason}", width, first=1)


def _known(rules: Sequence[RuleVerdict], width: int) -> Iterator[str]:
    """Deviations that the profile of the broker lists: they do not fail, and they are not hidden."""
    for rule in rules:
        for signature, count in Counter(violation.signature for violation in rule.known).items():
            named = f"{rule.rule} ({clean(signature)})" if signature else rule.rule
            yield from _wrap(f"known deviation: {named}, seen {count:,} times", width, first=1)


def closing(rules: Sequence[RuleVerdict], *, exit_code: int | None = None) -> str:
    """The last line: how many rules had which verdict, and the exit code."""
    counts = Counter(rule.verdict for rule in rules)
    parts = [f"{counts[Verdict.FAIL]} violated", f"{counts[Verdict.PASS]} held"]
    words = {Verdict.ERROR: "in error", Verdict.SKIP: "skipped", Verdict.NOT_EXERCISED: "not exercised"}
    parts += [f"{counts[verdict]} {word}" for verdict, word in words.items() if counts[verdict]]
    return f"{', '.join(parts)}   exit {exit_code_of(rules) if exit_code is None else exit_code}"


def exit_code_of(rules: Iterable[RuleVerdict]) -> int:
    """1 where a rule is violated; 2 where none is and a check crashed, or nothing was compared; else 0."""
    listed = list(rules)
    verdicts = {rule.verdict for rule in listed}
    if Verdict.FAIL in verdicts or any(rule.violations for rule in listed):  # a check may crash after what it found
        return VIOLATED
    if Verdict.ERROR in verdicts or Verdict.PASS not in verdicts:
        return COULD_NOT_JUDGE
    return HELD


# Failures ---------------------------------------------------------------------------------------------------------


def failure(failed: Failure, *, replay_options: str = "", width: int = WIDTH) -> str:
    """One failure: the rule, the clause, where, expected and observed, the minimal schedule and the replay command.

    `replay_options` are the options that choose the target again ("--broker-url http://...").
    """
    seen = f"seen {failed.seen} of {failed.tries}" if failed.tries else ""
    lines = violation(failed.violation, seen=seen, width=width)
    lines += steps(failed.schedule, failed.history, width=width)
    if failed.also:
        lines += _labelled("also", ", ".join(failed.also), width)
    lines += _labelled("found", _found(failed), width)
    if failed.history_path:
        lines.append(history_line(failed.history_path, failed.violation))
    if failed.replay_path:
        lines.append(replay_line(failed.replay_path, replay_options))
    return "\n".join(lines)


def violation(violated: Violation, *, seen: str = "", width: int = WIDTH) -> list[str]:
    """The lines of one violation without its schedule."""
    rule = RULES.get(violated.rule)
    words = [f"FAIL {clean(violated.rule)}"]
    if rule is not None:
        words += [rule.level, f"contract {rule.clause}"]
    if violated.signature:
        words.append(f"({clean(violated.signature)})")
    if violated.following:
        words.append("follows an earlier violation")
    lines = ["   ".join(word for word in [*words, seen] if word)]
    lines += _labelled("where", _where(violated), width)
    lines += _labelled("expected", clean(violated.expected), width)
    return lines + _labelled("observed", clean(violated.observed), width)


def steps(schedule: Schedule, history: History | None, *, width: int = WIDTH) -> list[str]:
    """The lines that show a schedule."""
    return _labelled("schedule", clean(notation(schedule, history), longest=10 * LONGEST), width)


def _where(violated: Violation) -> str:
    parts = [f"queue {clean(violated.queue)}"] if violated.queue else []
    if violated.partition:
        parts.append(f"partition {clean(violated.partition)}")
    group = NO_GROUP if violated.group in ("", QUEUE_MODE) else clean(violated.group)
    if violated.group or violated.rule.split("/", 1)[0] in OF_A_GROUP:
        parts.append(f"group {group}")
    return "  ".join(parts) or "the whole history"


def _found(failed: Failure) -> str:
    before, after = len(failed.original.steps), len(failed.schedule.steps)
    return (
        f"after {failed.seconds_to_first:.1f} s as {_steps(before)}, "
        f"reduced to {_steps(after)} after {failed.seconds_to_minimal:.1f} s"
    )


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def history_line(path: str, violated: Violation) -> str:
    """Where the history is, and which of its calls show the violation; never wrapped."""
    calls = f"  calls {', '.join(map(str, violated.calls))}" if violated.calls else ""
    return _label("history") + clean(path, longest=10 * LONGEST) + calls


def replay_line(path: str, options: str = "") -> str:
    """The command that plays a failure again; never wrapped, so that it can be copied."""
    command = " ".join(part for part in ("broker-contract replay", shlex.quote(path), options) if part)
    return _label("replay") + clean(command, longest=10 * LONGEST)


# Lines ------------------------------------------------------------------------------------------------------------


def _label(label: str) -> str:
    return f" {label:<10}"


def _labelled(label: str, text: str, width: int) -> list[str]:
    lead = _label(label)
    indent = " " * len(lead)
    lines = textwrap.wrap(text, width, initial_indent=lead, subsequent_indent=indent, break_on_hyphens=False)
    return lines or [lead.rstrip()]


def _list(label: str, names: Iterable[str], width: int, *, separator: str = ", ") -> str:
    text = separator.join(names)
    return "\n".join(_wrap(f"{label}: {text}", width, first=1)) if text else ""


def _wrap(text: str, width: int, *, first: int = 0, hanging: int = 3) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=" " * first, subsequent_indent=" " * hanging, break_on_hyphens=False
    )
