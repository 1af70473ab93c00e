"""The queen lane: the suite against the real broker.

These tests run where they are asked for: `tox -e queen`, or `QUEEN_LANE=1 pytest tests/queen`. Everywhere else, and
where the real broker cannot be installed, each of them is a SKIP that says why.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVER = Path(__file__).with_name("queen_server.py")
STOP_S = 40.0


@pytest.fixture(scope="session")
def queen_url() -> Iterator[str]:
    """The URL of a Queen 1.3.0 of our own, which ends with this process however that ends."""
    if not os.environ.get("QUEEN_LANE"):
        pytest.skip("the real broker is a lane of its own: tox -e queen, or QUEEN_LANE=1 pytest tests/queen")
    command = [sys.executable, str(SERVER), "--leash"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        if url:
            yield url
    finally:
        server.stdin.close()
        server.stdout.close()
        # Not communicate(): it writes to the standard input that was just closed.
        reason = server.stderr.read().strip() if server.stderr is not None else ""
        server.wait(STOP_S)
        if server.stderr is not None:
            server.stderr.close()
    if not url:
        pytest.skip(reason or f"the real broker did not start (exit code {server.returncode})")
