"""The command `broker-contract`: run, replay, check, rules.

Exit codes: 0 every rule that was exercised held, 1 a rule is violated, 2 could not judge. Whatever goes wrong before a
verdict is one sentence on standard error that shows the value and says what to do, and exit code 2.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
import msgspec
from rich.console import Console
from rich.text import Text

from contract import history as histories
from contract import replay_file
from contract.broker_options import Broker, broker_options, chosen_broker
from contract.errors import CouldNotJudge
from contract.history import HistoryError
from contract.interrupts import interrupts_kept
from contract.replay_file import REPLAY_VERSION, Replay
from contract.verdicts import Judgement
from contract.version import suite_version

if TYPE_CHECKING:
    from contract.explore import Exploration, Failure, Progress
    from contract.targets import Target

DEFAULT_TIME_S = 20.0
"""How long `run` looks for failures when nothing says how much: the whole command stays under a minute."""

LONGEST_TIME_S = 7 * 86_400.0

PIPED_WIDTH = 120
NARROWEST = 60
REAL_TRIES = 3
"""How often a schedule is replayed on a real broker, which need not do the same twice."""

INTERRUPTED = "interrupted; what was recorded stays on disk, run again for a verdict"

STYLES = (
    (r"(?<![\w/])FAIL( \d+)?\b", "bold red"),
    (r"(?<![\w/])ERROR( \d+)?\b", "bold magenta"),
    (r"(?<![\w/])PASS( \d+)?\b", "green"),
    (r"(?<![\w/])(SKIP|NOT EXERCISED)( \d+)?\b", "yellow"),
)


# What is said -----------------------------------------------------------------------------------------------------


class Screen(Console):
    """Standard output. Where its reader has gone (`| head`) the rest is dropped: that must not change the exit code."""

    def on_broken_pipe(self) -> None:
        """Keeps Python from complaining at its end, and from exiting with 1, which would be a verdict."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Prints a report; colour on the verdicts, and only on a terminal. `text` is clean and already wrapped."""
    shown = Text(text)
    for pattern, style in STYLES:
        shown.highlight_regex(pattern, style)
    Screen(highlight=False, markup=False, emoji=False).print(shown, soft_wrap=True)


def complain(sentence: str) -> None:
    """Prints the one sentence that explains exit code 2."""
    from contract.reports.text import clean

    with contextlib.suppress(BrokenPipeError):
        print(f"broker-contract: {clean(sentence, longest=2000)}", file=sys.stderr, flush=True)


def width() -> int:
    """Columns of the terminal, or 120 where the output goes elsewhere."""
    console = Console()
    return max(NARROWEST, console.width) if console.is_terminal else PIPED_WIDTH


# Commands ---------------------------------------------------------------------------------------------------------


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(suite_version(), "-V", "--version", prog_name="broker-contract")
def commands() -> None:
    """Judges a message broker against its contract: ordering, consumer groups, leases, acks, redelivery.

    Exit code 0: every rule that was exercised held. 1: a rule is violated. 2: could not judge.
    """


def finite(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    """Refuses "nan", which no range excludes and no time ever reaches."""
    if value is not None and math.isnan(value):
        raise click.BadParameter(f"{value} is no number of seconds", ctx=context, param=option)
    return value


@commands.command()
@broker_options
@click.option("--broker-seed", type=click.IntRange(min=0), help="Draws the same schedules again. Default: at random.")
@click.option("--schedules", type=click.IntRange(min=1), help="Stop after so many schedules.")
@click.option(
    "--max-time",
    type=click.FloatRange(min=0, min_open=True, max=LONGEST_TIME_S),
    metavar="SECONDS",
    callback=finite,
    help=f"Stop drawing after so long. Default: {DEFAULT_TIME_S:.0f} s, or no limit where --schedules is given.",
)
@click.option("--history-dir", type=click.Path(file_okay=False, path_type=Path), help="Keep every history here.")
@click.option(
    "--failures-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("failures"),
    show_default=True,
    help="Where a replay file of each failure is written.",
)
def run(
    broker_seed: int | None,
    schedules: int | None,
    max_time: float | None,
    history_dir: Path | None,
    failures_dir: Path,
    **values: Any,
) -> int:
    """Draws random schedules, plays them against a broker and judges what happened.

    Schedules of earlier failures, which are files in the folder of failures, are played first.
    """
    from contract.explore import explore
    from contract.reports import text

    broker = chosen_broker(values)
    if max_time is None and schedules is None:
        max_time = DEFAULT_TIME_S
    if history_dir is not None:
        make_folder(history_dir, "--history-dir")
    saved = [replay_file.read(path).schedule for path in sorted(failures_dir.glob("*.json"))]
    target = broker.target()
    seed = secrets.randbelow(1_000_000) if broker_seed is None else broker_seed
    cut_short: list[int] = []
    try:
        with progress_line() as progress:
            exploration = explore(
                target,
                seed=seed,
                schedules=schedules,
                max_time_s=max_time,
                history_dir=history_dir,
                progress=progress,
                saved=saved,
                so_far=lambda partial: cut_short.append(report(partial, broker, failures_dir, whole=False)),
            )
    except (KeyboardInterrupt, CouldNotJudge) as error:
        complain(str(error) or INTERRUPTED)
        return cut_short[0] if cut_short else text.COULD_NOT_JUDGE
    finally:
        for queue in getattr(target, "left_behind", ()):
            complain(f"the queue {queue!r} of this run could not be deleted; delete it by hand")
        for thing in getattr(target, "left_stopped", ()):
            complain(f"the {thing} may still be stopped; start it by hand")
    return report(exploration, broker, failures_dir, whole=True)


def make_folder(path: Path, option: str) -> None:
    """Makes a folder before anything is played, so that a run does not end for want of one."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CouldNotJudge(f"{option} {os.fspath(path)!r} cannot be made: {error.strerror}; name another") from error


def report(exploration: Exploration, broker: Broker, failures_dir: Path, *, whole: bool) -> int:
    """Writes the replay files, prints everything, and returns the exit code.

    Of a run that was cut short a violation still counts; that the other rules held cannot be said.
    """
    from contract.reports import text

    columns = width()
    failures = [keep(failed, exploration, failures_dir) for failed in exploration.failures]
    code = text.exit_code_of(exploration.rules)
    if not whole and code == text.HELD:
        code = text.COULD_NOT_JUDGE
    parts = [
        text.heading(exploration, width=columns),
        text.table(exploration.rules, width=columns),
        text.never_reached(exploration, width=columns),
    ]
    say("\n".join(part for part in parts if part))
    for failed in failures:
        say("\n" + text.failure(failed, replay_options=broker.options(), width=columns))
    if not failures:
        say("")
    say(text.closing(exploration.rules, exit_code=code))
    return code


def keep(failed: Failure, exploration: Exploration, folder: Path) -> Failure:
    """Writes the replay file of a failure; the returned failure names it."""
    replay = Replay(
        replay=REPLAY_VERSION,
        suite=suite_version(),
        rule=failed.violation.rule,
        signature=failed.violation.signature,
        target=exploration.target,
        seed=exploration.seed,
        expected=failed.violation.expected,
        observed=failed.violation.observed,
        schedule=failed.schedule,
    )
    return msgspec.structs.replace(failed, replay_path=os.fspath(replay_file.write(replay, folder)))


@contextlib.contextmanager
def progress_line() -> Iterator[Callable[[Progress], None] | None]:
    """One line on standard error that shows how far a run is; None where that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with console.status("starting") as status:

        def show(progress: Progress) -> None:
            found = f"  failures: {progress.failures}" if progress.failures else ""
            status.update(Text(f"{progress.doing}  {progress.schedules:,} schedules  {progress.seconds:.0f} s{found}"))

        yield show


@commands.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@broker_options
@click.option(
    "--tries", type=click.IntRange(1, 1000), help=f"Plays each file so often. Default: 1, in real time {REAL_TRIES}."
)
def replay(files: tuple[Path, ...], tries: int | None, **values: Any) -> int:
    """Plays the schedules of replay files again and says whether their rules are still violated."""
    broker = chosen_broker(values)
    replays = [(path, replay_file.read(path)) for path in files]
    target = broker.target()
    codes = [replay_one(path, kept, target, broker, tries) for path, kept in replays]
    return 1 if 1 in codes else max(codes)


def replay_one(path: Path, kept: Replay, target: Target, broker: Broker, tries: int | None) -> int:
    """Plays one file; prints a failure with its evidence, or one line that says that its rule held."""
    from contract.explore import replay as play_again
    from contract.judge import headline
    from contract.reports import text
    from contract.targets import deterministic

    count = tries or (1 if deterministic(target) else REAL_TRIES)
    played = play_again(kept.schedule, target, seed=kept.seed, tries=count, rule=kept.rule)
    first = headline(played.judgement)
    own = next((rule for rule in played.judgement.rules if rule.rule == kept.rule), None)
    if own is None:
        raise CouldNotJudge(f"{os.fspath(path)!r} is about the rule {kept.rule!r}, which this suite does not have")
    if first is None:
        shown = text.clean(os.fspath(path), longest=2000)
        say(f"{own.verdict} {kept.rule}   {shown}   {own.compared:,} compared   seen 0 of {count}")
        return text.exit_code_of([own])
    found = own.violations[0] if own.violations else first  # else the rule of the file held and another one did not
    columns = width()
    seen = f"seen {played.seen} of {played.tries}" if own.violations else ""
    lines = text.violation(found, seen=seen, width=columns)
    lines += text.steps(kept.schedule, played.history, width=columns)
    lines.append(text.replay_line(os.fspath(path), broker.options()))
    if not own.violations:
        lines.append(f" {kept.rule}, for which the file was written: {own.verdict}")
    say("\n".join(lines))
    return text.VIOLATED


@commands.command()
@click.argument("paths", nargs=-1, required=True, metavar="HISTORY...", type=click.Path(path_type=Path))
def check(paths: tuple[Path, ...]) -> int:
    """Judges recorded histories (files, or folders with *.jsonl)."""
    from contract.judge import headline, judge
    from contract.merging import merged
    from contract.reports import text

    files = [file for path in paths for file in history_files(path)]
    columns = width()
    judgements: list[Judgement] = []
    failures: list[str] = []
    for file in files:
        history = histories.read(file)
        judgement = judge(history)
        judgements.append(judgement)
        if history.cut:
            say(f" cut: {text.clean(os.fspath(file))} has no end marker; judged as far as it goes")
        first = headline(judgement)
        if first is not None:
            schedule = history.header.schedule
            lines = text.violation(first, width=columns)
            lines += text.steps(schedule, history, width=columns) if schedule is not None else []
            failures.append("\n".join([*lines, text.history_line(os.fspath(file), first)]))
    verdicts = merged(judgements)
    say(f"broker-contract {suite_version()}  {len(files):,} {'history' if len(files) == 1 else 'histories'}")
    say(text.table(verdicts, width=columns))
    say("\n".join(f"\n{failed}" for failed in failures))
    say(text.closing(verdicts))
    return text.exit_code_of(verdicts)


def history_files(path: Path) -> list[Path]:
    """The histories of a folder in the order of their names, or the file itself."""
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.jsonl"))
    if not files:
        raise CouldNotJudge(f"no *.jsonl in the folder {os.fspath(path)!r}; record histories with run --history-dir")
    return files


@commands.command()
@click.option("--markdown", is_flag=True, help="As the reference page of the documentation.")
def rules(markdown: bool) -> int:
    """Lists the rules: id, level, clause and statement."""
    from contract.reports import catalogue
    from contract.rules import RULES

    if markdown:
        click.echo(catalogue.markdown(RULES.values()), nl=False)
    else:
        say(catalogue.plain(RULES.values(), width=width()))
    return 0


# Entry ------------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command and exits with its code; nothing but a verdict exits with 1."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(exit_code(arguments))


def exit_code(arguments: Sequence[str] | None) -> int:
    """The command without the exit, every error as one sentence and 2."""
    with interrupts_kept() as interrupted:
        try:
            return int(commands.main(args=arguments, prog_name="broker-contract", standalone_mode=False) or 0)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
        except click.ClickException as error:
            context = getattr(error, "ctx", None)
            path = context.command_path if context is not None else "broker-contract"
            complain(f"{error.format_message().rstrip('.')}; see {path} --help")
        except (CouldNotJudge, HistoryError) as error:
            complain(str(error))
        except (click.Abort, KeyboardInterrupt):
            complain(INTERRUPTED)
        except OSError as error:
            complain(f"{error.filename or 'a file'}: {error.strerror or error}; make room or name another place")
        except Exception:  # a mistake of the suite is not a verdict on the broker
            if interrupted():
                complain(INTERRUPTED)
            else:
                traceback.print_exc()
                complain("internal error, please report it with the lines above")
    return 2


if __name__ == "__main__":
    main()
