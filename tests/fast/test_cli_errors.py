"""Bad input: one sentence with the value and what to do, exit code 2, never a traceback."""

from __future__ import annotations

import http.server
import threading
from contextlib import contextmanager

import pytest

from contract import cli


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    """Runs the command in an empty folder; gives its exit code, its output and its complaint."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BROKER_TOKEN", raising=False)

    def run(*arguments):
        code = cli.exit_code([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def one_sentence(result):
    code, output, complaint = result
    assert code == 2
    assert output == ""
    assert complaint.startswith("broker-contract: ")
    assert complaint.count("\n") == 1
    assert "Traceback" not in complaint
    return complaint


@contextmanager
def server(status, content_type, body):
    """A web server that gives every request the same answer."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_DELETE = do_PUT = do_GET  # noqa: N815

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{web.server_port}"
        finally:
            web.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--schedules", "0"), "0"),
        (("--schedules", "many"), "many"),
        (("--max-time", "-3"), "-3"),
        (("--max-time", "0"), "0"),
        (("--max-time", "nan"), "nan"),
        (("--max-time", "inf"), "inf"),
        (("--broker-seed", "-1"), "-1"),
        (("--lanes", "0", "--broker-url", "http://127.0.0.1:9"), "0"),
        (("--lanes", "4"), "--lanes"),
        (("--header", "no colon", "--broker-url", "http://127.0.0.1:9"), "no colon"),
        (("--header", "a b: c", "--broker-url", "http://127.0.0.1:9"), "a b: c"),
        (("--header", "a: b"), "--header"),
        (("--path-prefix", "/x"), "--path-prefix"),
        (("--broker-url", "nonsense"), "nonsense"),
        (("--broker-url", "ftp://host"), "ftp://host"),
        (("--broker-url", "http://[::1"), "http://[::1"),
        (("--ca-file", "missing.pem", "--broker-url", "https://127.0.0.1:9"), "missing.pem"),
        (("--broker-engine", "os"), "os"),
        (("--broker-engine", "os:missing"), "os:missing"),
        (("--broker-engine", "no.such.module:Engine"), "no.such.module:Engine"),
        (("--broker-engine", "os:PathLike", "--broker-url", "http://127.0.0.1:9"), "os:PathLike"),
        (("--no-such-option",), "--no-such-option"),
    ],
)
def test_an_option_out_of_range_is_named_with_its_value(command, arguments, named):
    assert named in one_sentence(command("run", *arguments))


def test_the_sentence_says_where_help_is(command):
    assert "broker-contract run --help" in one_sentence(command("run", "--schedules", "0"))


def test_an_unknown_command_is_named(command):
    assert "explode" in one_sentence(command("explode"))


def test_no_command_is_the_help(command):
    code, _, complaint = command()
    assert code == 2
    assert "Usage: broker-contract" in complaint


@pytest.mark.parametrize("name", ["run", "replay", "check", "rules"])
def test_every_command_has_help(command, name):
    code, output, _ = command(name, "--help")
    assert code == 0
    assert f"Usage: broker-contract {name}" in output


def test_a_url_where_nobody_listens(command):
    assert "http://127.0.0.1:9" in one_sentence(command("run", "--broker-url", "http://127.0.0.1:9"))


@pytest.mark.parametrize(
    ("status", "content_type", "body"),
    [
        (200, "text/html", b"<html><body>It works!</body></html>"),
        (200, "application/json", b"{}"),
        (200, "application/json", b"[1, 2"),
        (200, "application/json", b'{"version": 7}'),
        (200, "text/plain", b""),
        (200, "application/octet-stream", b"\xff\x00\xfe"),
        (404, "text/plain", b"not here"),
        (503, "application/json", b'{"version": "1.3.0"}'),
    ],
)
def test_a_target_that_is_no_broker(command, status, content_type, body):
    with server(status, content_type, body) as url:
        assert url in one_sentence(command("run", "--broker-url", url, "--max-time", "5"))


def test_hostile_text_of_a_target_does_not_reach_the_terminal(command):
    with server(500, "text/html", b"\x1b]0;pwned\x07\x1b[2J") as url:
        complaint = one_sentence(command("run", "--broker-url", url, "--max-time", "5"))
    assert complaint.rstrip("\n").isprintable()


def test_a_missing_replay_file(command):
    assert "missing.json" in one_sentence(command("replay", "missing.json"))


def test_a_broken_replay_file(command, tmp_path):
    (tmp_path / "broken.json").write_text('{"replay": 1, "rule"')
    assert "broken.json" in one_sentence(command("replay", "broken.json"))


def test_a_broken_replay_file_among_the_saved_failures(command, tmp_path):
    (tmp_path / "failures").mkdir()
    (tmp_path / "failures" / "broken.json").write_text("{}")
    assert "broken.json" in one_sentence(command("run", "--schedules", "1"))


def test_a_missing_history(command):
    assert "missing.jsonl" in one_sentence(command("check", "missing.jsonl"))


def test_a_folder_without_histories(command, tmp_path):
    assert str(tmp_path) in one_sentence(command("check", tmp_path))


@pytest.mark.parametrize("text", ["", "\n", "nonsense\n", '{"kind":"end","at_us":1}\n', "\x00\xff"])
def test_what_is_no_history(command, tmp_path, text):
    (tmp_path / "bad.jsonl").write_text(text, encoding="latin-1")
    assert "bad.jsonl" in one_sentence(command("check", "bad.jsonl"))


def test_a_folder_that_cannot_be_made(command, tmp_path):
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "histories"
    assert str(place) in one_sentence(command("run", "--schedules", "1", "--history-dir", place))


def test_a_mistake_of_the_suite_is_no_verdict(command, monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("a mistake")

    monkeypatch.setattr("contract.explore.explore", broken)
    code, _, complaint = command("run", "--schedules", "1")
    assert code == 2
    assert "internal error" in complaint
