"""The queen lane: the suite against the real broker.

These tests run where they are asked for: `tox -e queen`, or `QUEEN_LANE=1 pytest tests/queen`. Everywhere else, and
where the real broker cannot be installed, each of them is a SKIP that says why.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SERVER = Path(__file__).with_name("queen_server.py")
STOP_S = 40.0


@dataclass(frozen=True, slots=True)
class Queen:
    """A Queen 1.3.0 of our own: its URL, and where the program that keeps it takes orders."""

    url: str
    control: Path

    def order(self, *words: str) -> str:
        """The command that gives an order (see queen_server.py)."""
        return shlex.join([sys.executable, str(SERVER), "--control", str(self.control), *words])

    def storage(self, how: str) -> tuple[str, ...]:
        """The options that let a run break PostgreSQL off ("storage-crash", "storage-kill") and start it again."""
        return "--storage-stop-cmd", self.order(how), "--storage-start-cmd", self.order("storage-start")


@pytest.fixture(scope="session")
def queen_url(queen: Queen) -> str:
    """The URL of a Queen 1.3.0 of our own."""
    return queen.url


@pytest.fixture(scope="session")
def queen() -> Iterator[Queen]:
    """A Queen 1.3.0 of our own, which ends with this process however that ends."""
    if not os.environ.get("QUEEN_LANE"):
        pytest.skip("the real broker is a lane of its own: tox -e queen, or QUEEN_LANE=1 pytest tests/queen")
    folder = Path(tempfile.mkdtemp(prefix="queen-"))  # the path of a socket must be short
    control = folder / "control"
    command = [sys.executable, str(SERVER), "--leash", "--control", str(control)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        if url:
            yield Queen(url, control)
    finally:
        server.stdin.close()
        server.stdout.close()
        # Not communicate(): it writes to the standard input that was just closed.
        reason = server.stderr.read().strip() if server.stderr is not None else ""
        server.wait(STOP_S)
        if server.stderr is not None:
            server.stderr.close()
        shutil.rmtree(folder, ignore_errors=True)
    if not url:
        pytest.skip(reason or f"the real broker did not start (exit code {server.returncode})")
