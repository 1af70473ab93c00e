"""The real broker for the queen lane: PostgreSQL and Queen 1.3.0, installed where they are missing.

    python tests/queen/queen_server.py --install   installs, starts nothing
    python tests/queen/queen_server.py             starts both, prints one line with the URL, runs until Ctrl-C
    python tests/queen/queen_server.py --leash     the same, and stops when its standard input ends

`--leash` is for tests: however the process that started this one dies, the pipe between them closes, and both
servers are ended and their data removed.

What is there already is used: QUEEN_BIN is a `queen` program; PG_HOST (with PG_PORT, PG_USER, PG_PASSWORD,
PG_DATABASE) is a PostgreSQL whose database is empty. Nothing here is imported by the suite; only the standard
library is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

QUEEN_VERSION = "1.3.0"
POSTGRES_VERSIONS = Path("/usr/lib/postgresql")
"""Where Debian and Ubuntu put the programs, in a folder of each major version; none of these is on PATH."""

OLDEST_POSTGRES = 15
POSTGRES_PROGRAMS = ("initdb", "postgres", "createdb")

START_S = 60.0
STOP_S = 10.0
STARTS = 3
"""A free port can be taken by another process before the server listens on it: so many tries."""


class Unavailable(Exception):
    """The real broker cannot be had here; the message is one sentence that says why."""


class Stopped(Exception):
    """Somebody asked this process to end."""


@dataclass(frozen=True, slots=True)
class Database:
    """Where PostgreSQL listens."""

    host: str
    port: int
    user: str
    password: str
    name: str


# What is installed ------------------------------------------------------------------------------------------------


def cached_queen() -> Path:
    """Where `install_queen` puts the program."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "broker-contract" / f"queen-engine-{QUEEN_VERSION}" / "bin" / "queen"


def find_queen() -> Path:
    """The `queen` program. Raises `Unavailable`."""
    named = os.environ.get("QUEEN_BIN")
    path = Path(named) if named else cached_queen()
    if not os.access(path, os.X_OK):
        where = "QUEEN_BIN" if named else f"the cache, where {Path(__file__).name} --install puts it"
        raise Unavailable(f"no program at {str(path)!r} ({where})")
    return path


def find_postgres() -> Path | None:
    """The folder with PostgreSQL's programs, None where PG_HOST names a running server. Raises `Unavailable`."""
    if os.environ.get("PG_HOST"):
        return None
    packaged = [POSTGRES_VERSIONS / str(version) / "bin" for version in packaged_versions()]
    on_path = shutil.which("postgres")
    for folder in [*packaged, *([Path(on_path).resolve().parent] if on_path else [])]:
        if all((folder / name).exists() for name in POSTGRES_PROGRAMS):
            return folder
    where = f"no PostgreSQL {OLDEST_POSTGRES} or newer in {POSTGRES_VERSIONS}, none on PATH"
    raise Unavailable(f"{where}, and PG_HOST is not set")


def packaged_versions() -> list[int]:
    """The major versions that packages brought and that Queen can use, the newest first."""
    try:
        names = [path.name for path in POSTGRES_VERSIONS.iterdir()]
    except OSError:
        return []
    return sorted((int(name) for name in names if name.isdigit() and int(name) >= OLDEST_POSTGRES), reverse=True)


def install() -> None:
    """Installs what is missing. Raises `Unavailable` with the reason where that is impossible."""
    install_postgres()
    install_queen()


def install_postgres() -> None:
    """Debian's package, and only where there is none: an upgrade under a running server breaks it."""
    with contextlib.suppress(Unavailable):
        find_postgres()
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise Unavailable("PostgreSQL is not installed, and installing it needs apt-get and root")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    say("installing PostgreSQL with apt-get")
    run_installer(["apt-get", "update", "-q"], environment, limit_s=600)
    # Without this Debian starts a server of its own for the whole machine.
    Path("/etc/postgresql-common").mkdir(parents=True, exist_ok=True)
    settings = Path("/etc/postgresql-common/createcluster.conf")
    if not settings.exists():
        settings.write_text("create_main_cluster = false\n")
    run_installer(["apt-get", "install", "-qy", "--no-install-recommends", "postgresql"], environment, limit_s=1200)
    find_postgres()


def install_queen() -> None:
    """The crate `queen-engine`, built into the cache: some minutes, once."""
    with contextlib.suppress(Unavailable):
        find_queen()
        return
    if os.environ.get("QUEEN_BIN"):
        find_queen()  # says what is wrong with the name that was given
    cargo = shutil.which("cargo")
    if cargo is None:
        raise Unavailable("queen-engine is not installed, and building it needs cargo (Rust 1.88 or newer)")
    root = cached_queen().parent.parent
    say(f"building queen-engine {QUEEN_VERSION} into {root} (about 4 minutes on 2 cores)")
    command = [cargo, "install", "queen-engine", "--version", QUEEN_VERSION, "--locked", "--quiet", "--root", str(root)]
    run_installer(command, os.environ, limit_s=3000)
    find_queen()


def run_installer(command: list[str], environment: Mapping[str, str], *, limit_s: float) -> None:
    """Runs one installer. Raises `Unavailable` with the end of what it said."""
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{command[0]} {command[1]} was not done after {limit_s:.0f} s") from error
    except OSError as error:
        raise Unavailable(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise Unavailable(f"{command[0]} {command[1]} failed with exit code {done.returncode}: {last}")


# Servers ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def queen_server() -> Iterator[str]:
    """Starts PostgreSQL and Queen and gives the URL; ends both and removes their data. Raises `Unavailable`."""
    program, postgres = find_queen(), find_postgres()
    with scratch_folder() as folder, contextlib.ExitStack() as stack:
        database = given_database() if postgres is None else stack.enter_context(own_database(postgres, folder))
        yield stack.enter_context(own_queen(program, database, folder))


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for the data of both servers, which the unprivileged user of PostgreSQL can enter."""
    folder = Path(tempfile.mkdtemp(prefix="broker-contract-queen-"))
    try:
        folder.chmod(0o711)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def given_database() -> Database:
    """The database that the environment names."""
    environment = os.environ
    return Database(
        host=environment["PG_HOST"],
        port=int(environment.get("PG_PORT", "5432")),
        user=environment.get("PG_USER", "postgres"),
        password=environment.get("PG_PASSWORD", ""),
        name=environment.get("PG_DATABASE", "postgres"),
    )


@contextlib.contextmanager
def own_database(programs: Path, folder: Path) -> Iterator[Database]:
    """A PostgreSQL on a free port of 127.0.0.1, with one empty database and fsync as it comes (on)."""
    user = server_user()
    home = folder / "postgres"
    home.mkdir(mode=0o700)
    password = secrets.token_hex(16)
    (home / "password").write_text(password)
    if user is not None:
        for path in (home, home / "password"):
            shutil.chown(path, user.pw_name, user.pw_gid)
    data = home / "data"
    run_tool(
        [str(programs / "initdb"), "-D", str(data), "-U", "queen", "-A", "scram-sha-256"]
        + ["--pwfile", str(home / "password"), "-E", "UTF8", "--no-locale"],
        user,
        home,
    )
    for last in tries():
        port = free_port()
        command = [str(programs / "postgres"), "-D", str(data), "-p", str(port), "-k", str(home)]
        command += ["-c", "listen_addresses=127.0.0.1"]
        # SIGINT is PostgreSQL's fast shutdown: open connections are broken, data is flushed.
        with process(command, log=folder / "postgres.log", cwd=home, stop=signal.SIGINT, user=user) as server:
            database = Database("127.0.0.1", port, "queen", password, "queen")
            if not wait_until(partial(make_database, programs, database, user, home), server):
                if last:
                    raise Unavailable(f"PostgreSQL did not start: {tail(folder / 'postgres.log')}")
                continue
            yield database
            return


def make_database(programs: Path, database: Database, user: pwd.struct_passwd | None, home: Path) -> bool:
    """Creates the empty database; False while the server is not ready."""
    command = [str(programs / "createdb"), "-h", database.host, "-p", str(database.port), "-U", database.user]
    try:
        run_tool([*command, database.name], user, home, environment={"PGPASSWORD": database.password})
    except Unavailable:
        return False
    return True


@contextlib.contextmanager
def own_queen(program: Path, database: Database, folder: Path) -> Iterator[str]:
    """A broker on a free port, healthy when this yields its URL."""
    home = folder / "queen"
    home.mkdir()
    for last in tries():
        port = free_port()
        environment = os.environ | {
            "PG_HOST": database.host,
            "PG_PORT": str(database.port),
            "PG_USER": database.user,
            "PG_PASSWORD": database.password,
            "PG_DATABASE": database.name,
            "PORT": str(port),
            "QUEEN_BIND_ADDR": "127.0.0.1",
            "DB_POOL_SIZE": "40",  # its default of 160 exceeds PostgreSQL's 100 connections
            "FILE_BUFFER_DIR": str(home / "buffers"),  # its default is one folder for the whole machine
        }
        log = folder / "queen.log"
        with process([str(program)], log=log, cwd=home, stop=signal.SIGTERM, environment=environment) as server:
            url = f"http://127.0.0.1:{port}"
            if not wait_until(partial(healthy, url), server):
                if last:
                    raise Unavailable(f"queen did not become healthy: {tail(log)}")
                continue
            yield url
            return


def healthy(url: str) -> bool:
    """Whether the broker answers and says so in JSON."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return answer.status == 200 and "version" in json.loads(answer.read())
    except (OSError, ValueError):
        return False


# Processes --------------------------------------------------------------------------------------------------------


def server_user() -> pwd.struct_passwd | None:
    """PostgreSQL refuses root: its own user then. None means the user that we are. Raises `Unavailable`."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError as error:
        raise Unavailable("PostgreSQL refuses to run as root, and there is no user 'postgres'") from error


@contextlib.contextmanager
def process(
    command: list[str],
    *,
    log: Path,
    cwd: Path,
    stop: signal.Signals,
    environment: Mapping[str, str] | None = None,
    user: pwd.struct_passwd | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a server in a session of its own, so that Ctrl-C reaches us first, and ends it by its id."""
    with log.open("ab") as output:
        server = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            extra_groups=None if user is None else [],
        )
    try:
        yield server
    finally:
        server.send_signal(stop)
        try:
            server.wait(STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(STOP_S)


def run_tool(
    command: list[str], user: pwd.struct_passwd | None, cwd: Path, *, environment: Mapping[str, str] | None = None
) -> None:
    """Runs one of PostgreSQL's programs to its end. Raises `Unavailable` with what it said."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | (environment or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        user=None if user is None else user.pw_uid,
        group=None if user is None else user.pw_gid,
        extra_groups=None if user is None else [],
    )
    if done.returncode != 0:
        raise Unavailable(f"{Path(command[0]).name} failed: {done.stderr.strip() or done.stdout.strip()}")


def tries() -> Iterator[bool]:
    """One element a try; True for the last one."""
    return (number == STARTS for number in range(1, STARTS + 1))


def wait_until(ready: Callable[[], bool], server: subprocess.Popen[bytes]) -> bool:
    """Polls `ready()`; False when the process ended or `START_S` are over."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.poll() is None:
        if ready():
            return True
        time.sleep(0.1)
    return False


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tail(path: Path, lines: int = 5) -> str:
    """The end of a log, on one line."""
    return " | ".join(path.read_text(errors="replace").splitlines()[-lines:]) or "no output"


def say(text: str) -> None:
    """One line on standard error; standard output is for the URL."""
    print(f"queen lane: {text}", file=sys.stderr, flush=True)


# Command ----------------------------------------------------------------------------------------------------------


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def stop_on_signal(number: int, frame: FrameType | None) -> None:
    """Unwinds to the end of the servers; a second signal must not interrupt that."""
    for other in STOP_SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(signal.Signals(number).name)


def main() -> int:
    """Exit code 0 when all went well, 3 where the real broker cannot be had."""
    parser = argparse.ArgumentParser(description="Starts PostgreSQL and Queen 1.3.0 for the tests.")
    parser.add_argument("--install", action="store_true", help="install what is missing and start nothing")
    parser.add_argument("--leash", action="store_true", help="stop when standard input ends")
    options = parser.parse_args()
    for number in STOP_SIGNALS:
        signal.signal(number, stop_on_signal)
    try:
        if options.install:
            install()
            print(find_queen())
            return 0
        with queen_server() as url:
            print(url, flush=True)
            inputs = [sys.stdin] if options.leash else []
            select.select(inputs, [], [])
    except Unavailable as error:
        say(str(error))
        return 3
    except Stopped:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
