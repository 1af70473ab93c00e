"""Where the queen lane looks for PostgreSQL; the lane itself needs both servers."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

QUEEN = Path(__file__).parents[1] / "queen"


@pytest.fixture
def server(monkeypatch, tmp_path):
    """The module, on a machine without PostgreSQL."""
    monkeypatch.syspath_prepend(str(QUEEN))
    module = importlib.import_module("queen_server")
    monkeypatch.setattr(module, "POSTGRES_VERSIONS", tmp_path / "postgresql")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("PG_HOST", raising=False)
    return module


def programs(folder, names=("initdb", "postgres", "createdb")):
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch(mode=0o755)
    return folder


def test_the_newest_packaged_version_is_taken(server, tmp_path):
    for version in ("15", "17", "9.6"):
        programs(tmp_path / "postgresql" / version / "bin")
    assert server.find_postgres() == tmp_path / "postgresql" / "17" / "bin"


def test_a_version_whose_server_is_not_there_any_more_is_passed_over(server, tmp_path):
    programs(tmp_path / "postgresql" / "17" / "bin", names=("createdb",))
    programs(tmp_path / "postgresql" / "15" / "bin")
    assert server.find_postgres() == tmp_path / "postgresql" / "15" / "bin"


def test_one_on_the_path_is_taken_where_no_package_is(server, tmp_path):
    programs(tmp_path / "bin")
    assert server.find_postgres() == tmp_path / "bin"


def test_a_version_that_is_too_old_is_none(server, tmp_path):
    programs(tmp_path / "postgresql" / "13" / "bin")
    with pytest.raises(server.Unavailable, match="no PostgreSQL 15 or newer"):
        server.find_postgres()


def test_no_postgresql_at_all_is_said(server):
    with pytest.raises(server.Unavailable, match="none on PATH, and PG_HOST is not set"):
        server.find_postgres()


def test_a_given_database_needs_no_programs(server, monkeypatch):
    monkeypatch.setenv("PG_HOST", "127.0.0.1")
    assert server.find_postgres() is None
