"""`python -m reference_broker` as a process: it starts, serves, is killed, comes back, and stops in order."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 30


@contextlib.contextmanager
def running(data, *options):
    """A broker process on a free port; killed at the end, if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "reference_broker", "--data", str(data), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:"), (line, process.poll())
        with httpx.Client(base_url=line.split()[-1], timeout=LIMIT_S, trust_env=False) as client:
            yield process, client
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=LIMIT_S)


def refused(*options):
    """What a start that does not succeed says."""
    return subprocess.run(
        [sys.executable, "-m", "reference_broker", *options],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def push(client, *ids):
    items = [{"queue": "q", "payload": name, "transactionId": name} for name in ids]
    assert client.post("/api/v1/push", json={"items": items}).status_code == 201


def pop(client, **query):
    answer = client.get("/api/v1/pop/queue/q", params=query)
    return answer.json()["messages"] if answer.status_code == 200 else []


def test_what_was_answered_survives_a_kill_and_nothing_stays_behind(tmp_path):
    data = tmp_path / "data"
    with running(data) as (process, client):
        push(client, "a", "b", "c")
        messages = pop(client, batch=2, leaseSeconds=60)
        item = {key: messages[1][key] for key in ("transactionId", "partitionId", "leaseId")}
        assert client.post("/api/v1/ack", json=item).json()[0]["success"] is True
        os.kill(process.pid, signal.SIGKILL)
        process.wait(LIMIT_S)
    with running(data) as (process, client):
        assert [message["transactionId"] for message in pop(client)] == ["c"]
        push(client, "a")
        assert pop(client) == []
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    assert sorted(path.name for path in data.iterdir()) == ["broker.sqlite3", "lock"]


def test_an_orderly_stop_answers_parked_pops(tmp_path):
    with running(tmp_path) as (process, client):
        answers = []

        def wait():
            answers.append(client.get("/api/v1/pop/queue/q?wait=true&timeout=25000").status_code)

        thread = threading.Thread(target=wait)
        thread.start()
        while json.loads(httpx.get(f"{client.base_url}/health", trust_env=False).text)["status"] != "healthy":
            pass
        threading.Event().wait(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S / 3) == 0
        thread.join(LIMIT_S)
        assert answers == [204]


def test_small_answers_do_not_wait_for_the_network(tmp_path):
    with running(tmp_path) as (_, client):
        push(client, "a")
        times = [client.get("/health").elapsed.total_seconds() for _ in range(20)]
    assert sorted(times)[10] < 0.03  # 44 ms each without TCP_NODELAY


def test_a_second_broker_on_the_same_data_is_refused(tmp_path):
    with running(tmp_path):
        answer = refused("--data", str(tmp_path))
    assert answer.returncode == 2
    assert "another broker is running" in answer.stderr


def test_a_taken_port_is_refused(tmp_path):
    with running(tmp_path / "one") as (_, client):
        answer = refused("--data", str(tmp_path / "two"), "--port", str(client.base_url.port))
    assert answer.returncode == 2
    assert "cannot listen on 127.0.0.1" in answer.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "--data"),
        (("--data", "/dev/null/x"), "/dev/null/x"),
        (("--data", "x", "--port", "70000"), "70000"),
        (("--data", "x", "--port", "http"), "http"),
        (("--nope",), "--data"),
        (("--data", "x", "--nope"), "--nope"),
    ],
)
def test_a_bad_option_is_one_sentence_and_exit_2(options, reason):
    answer = refused(*options)
    assert answer.returncode == 2
    assert reason in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1
    assert answer.stdout == ""
