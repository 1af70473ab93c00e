"""The real broker for the queen lane: PostgreSQL and Queen 1.3.0, installed where they are missing.

    python tests/queen/queen_server.py --install   installs, starts nothing
    python tests/queen/queen_server.py             starts both, prints one line with the URL, runs until Ctrl-C
    python tests/queen/queen_server.py --leash     the same, and stops when its standard input ends

`--leash` is for tests: however the process that started this one dies, the pipe between them closes, and both
servers are ended and their data removed.

With `--control SOCKET` the running program takes orders, and with one more word this program gives them:

    ... --control SOCKET storage-crash     PostgreSQL breaks off: SIGQUIT, which writes nothing any more
    ... --control SOCKET storage-kill      PostgreSQL and all of its processes get SIGKILL
    ... --control SOCKET storage-start     PostgreSQL starts again on the same data; returns when it takes connections
    ... --control SOCKET queen PORT DATA   becomes one more Queen, on that PostgreSQL and a database of its own

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
from dataclasses import asdict, dataclass, replace
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
def queen_server() -> Iterator[tuple[str, Postgres | None]]:
    """Starts PostgreSQL and Queen; ends both and removes their data.

    Gives the URL, and PostgreSQL where it is ours. Raises `Unavailable`.
    """
    program, programs = find_queen(), find_postgres()
    with scratch_folder() as folder, contextlib.ExitStack() as stack:
        postgres = None if programs is None else stack.enter_context(own_postgres(programs, folder))
        database = given_database() if postgres is None else postgres.database
        yield stack.enter_context(own_queen(program, database, folder)), postgres


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
def own_postgres(programs: Path, folder: Path) -> Iterator[Postgres]:
    """A PostgreSQL on a free port of 127.0.0.1, with one empty database and fsync as it comes (on)."""
    user = server_user()
    home = folder / "postgres"
    home.mkdir(mode=0o700)
    password = secrets.token_hex(16)
    (home / "password").write_text(password)
    if user is not None:
        for path in (home, home / "password"):
            shutil.chown(path, user.pw_name, user.pw_gid)
    run_tool(
        [str(programs / "initdb"), "-D", str(home / "data"), "-U", "queen", "-A", "scram-sha-256"]
        + ["--pwfile", str(home / "password"), "-E", "UTF8", "--no-locale"],
        user,
        home,
    )
    for last in tries():
        postgres = Postgres(programs, Database("127.0.0.1", free_port(), "queen", password, "postgres"), user, home)
        try:
            if postgres.start():
                postgres.database = postgres.own("queen")
                yield postgres
                return
            if last:
                raise Unavailable(f"PostgreSQL did not start: {tail(postgres.log)}")
        finally:
            postgres.end()


class Postgres:
    """One PostgreSQL server that can be broken off and started again on the same data."""

    def __init__(self, programs: Path, database: Database, user: pwd.struct_passwd | None, home: Path) -> None:
        self.database = database
        self.log = home.parent / "postgres.log"
        self._programs, self._user, self._home = programs, user, home
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> bool:
        """Starts it and waits until it takes connections; False when it does not come to that."""
        if self._server is None:
            command = [str(self._programs / "postgres"), "-D", str(self._home / "data"), "-k", str(self._home)]
            command += ["-p", str(self.database.port), "-c", "listen_addresses=127.0.0.1"]
            command += ["-c", "max_connections=200"]  # two brokers
            self._server = spawn(command, log=self.log, cwd=self._home, user=self._user)
        return wait_until(self._takes_connections, self._server)

    def own(self, name: str) -> Database:
        """The database of that name, made where it is new. Raises `Unavailable`."""
        database = replace(self.database, name=name)
        created = "SELECT 1 FROM pg_database WHERE datname = '" + name + "'"
        if not self._asked(created):
            address = ["-h", database.host, "-p", str(database.port), "-U", database.user]
            environment = {"PGPASSWORD": database.password}
            run_tool(
                [str(self._programs / "createdb"), *address, name], self._user, self._home, environment=environment
            )
        return database

    def crash(self) -> None:
        """PostgreSQL's immediate shutdown: no checkpoint, nothing is written any more, recovery at the next start."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """SIGKILL for the server and every process that it started; those lead sessions of their own."""
        server = self._server
        if server is None:
            return
        children = [int(pid) for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()]
        self._end(signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + STOP_S
        while time.monotonic() < end and any(map(alive, children)):
            time.sleep(0.01)

    def end(self) -> None:
        """SIGINT, PostgreSQL's fast shutdown: open connections are broken, data is flushed."""
        self._end(signal.SIGINT)

    def _end(self, number: signal.Signals) -> None:
        server, self._server = self._server, None
        if server is not None:
            end_process(server, number)

    def _takes_connections(self) -> bool:
        return self._asked("SELECT 1") == "1"

    def _asked(self, query: str) -> str:
        """One value; "" where there is none, or the server does not answer."""
        database = self.database
        command = [str(self._programs / "psql"), "-h", database.host, "-p", str(database.port), "-U", database.user]
        command += ["-d", "postgres", "-AXtc", query]
        environment = os.environ | {"PGPASSWORD": database.password, "PGCONNECT_TIMEOUT": "5"}
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return done.stdout.strip()


@contextlib.contextmanager
def own_queen(program: Path, database: Database, folder: Path) -> Iterator[str]:
    """A broker on a free port, healthy when this yields its URL."""
    home = folder / "queen"
    home.mkdir()
    for last in tries():
        port = free_port()
        environment = os.environ | queen_settings(database, port, home)
        log = folder / "queen.log"
        with process([str(program)], log=log, cwd=home, stop=signal.SIGTERM, environment=environment) as server:
            url = f"http://127.0.0.1:{port}"
            if not wait_until(partial(healthy, url), server):
                if last:
                    raise Unavailable(f"queen did not become healthy: {tail(log)}")
                continue
            yield url
            return


def queen_settings(database: Database, port: int, home: Path) -> dict[str, str]:
    """The environment of a broker that keeps its files in `home`."""
    return {
        "PG_HOST": database.host,
        "PG_PORT": str(database.port),
        "PG_USER": database.user,
        "PG_PASSWORD": database.password,
        "PG_DATABASE": database.name,
        "PORT": str(port),
        "QUEEN_BIND_ADDR": "127.0.0.1",
        "DB_POOL_SIZE": "40",  # its default of 160 exceeds the connections of PostgreSQL
        "FILE_BUFFER_DIR": str(home / "buffers"),  # its default is one folder for the whole machine
    }


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
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a server, and ends it by its id."""
    server = spawn(command, log=log, cwd=cwd, environment=environment)
    try:
        yield server
    finally:
        end_process(server, stop)


def spawn(
    command: list[str],
    *,
    log: Path,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    user: pwd.struct_passwd | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a server in a session of its own, so that Ctrl-C reaches us first."""
    with log.open("ab") as output:
        return subprocess.Popen(
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


def end_process(server: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Sends a signal and waits for the end, which SIGKILL brings about where the signal does not."""
    server.send_signal(number)
    try:
        server.wait(STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(STOP_S)


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


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


# Orders -----------------------------------------------------------------------------------------------------------


ORDERS = ("storage-crash", "storage-kill", "storage-start", "queen")
ORDER_S = 60.0


def serve(postgres: Postgres | None, control: socket.socket | None, *, leash: bool) -> None:
    """Obeys orders until the leash ends."""
    inputs = [*([sys.stdin] if leash else []), *([control] if control is not None else [])]
    while True:
        ready, _, _ = select.select(inputs, [], [])
        if sys.stdin in ready:
            return
        assert control is not None
        connection, _ = control.accept()
        with connection:
            connection.settimeout(ORDER_S)
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps(obey(postgres, connection.recv(1000).decode())).encode())


def obey(postgres: Postgres | None, order: str) -> dict[str, object]:
    """What came of an order: "error" where it could not be done, the settings of a database for a broker."""
    if postgres is None:
        return {"error": "PG_HOST names the PostgreSQL, which is not ours to stop"}
    try:
        if order == "storage-crash":
            postgres.crash()
        elif order == "storage-kill":
            postgres.kill()
        elif order == "storage-start":
            if not postgres.start():
                return {"error": f"PostgreSQL did not start: {tail(postgres.log)}"}
        else:
            return asdict(postgres.own("second"))
    except (Unavailable, OSError, subprocess.SubprocessError) as error:
        return {"error": str(error)}
    return {}


def give(place: Path, order: list[str]) -> int:
    """Gives an order to the running program; 0 where it was done."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ORDER_S)
        connection.connect(str(place))
        connection.sendall(order[0].encode())
        answer = json.loads(connection.makefile().read())
    if "error" in answer:
        say(answer["error"])
        return 1
    if order[0] == "queen":
        port, home = int(order[1]), Path(order[2])
        program = str(find_queen())
        os.execve(program, [program], os.environ | queen_settings(Database(**answer), port, home))
    return 0


@contextlib.contextmanager
def listening(place: Path | None) -> Iterator[socket.socket | None]:
    """A socket for orders at a place in the file system."""
    if place is None:
        yield None
        return
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(str(place))
        try:
            control.listen()
            yield control
        finally:
            place.unlink(missing_ok=True)


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
    parser.add_argument("--control", type=Path, metavar="SOCKET", help="take orders here, or give one")
    parser.add_argument("order", nargs="*", metavar="ORDER", help=", ".join(ORDERS))
    options = parser.parse_args()
    if options.order:
        if options.control is None or options.order[0] not in ORDERS:
            parser.error(f"give --control SOCKET and one of {', '.join(ORDERS)}")
        return give(options.control, options.order)
    for number in STOP_SIGNALS:
        signal.signal(number, stop_on_signal)
    try:
        if options.install:
            install()
            print(find_queen())
            return 0
        with queen_server() as (url, postgres), listening(options.control) as control:
            print(url, flush=True)
            serve(postgres, control, leash=options.leash)
    except Unavailable as error:
        say(str(error))
        return 3
    except Stopped:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
