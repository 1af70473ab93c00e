"""The figures of the comparison with peers: what is counted, and what a peer does better is said."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("peers")


def words(line):
    return " ".join(line.split())


def found(peers, tool, defect, first_s, minimal_s, steps, **more):
    return peers.Hunt(tool, defect, 0, first_s, minimal_s, steps, **more)


@pytest.fixture
def hunts(peers):
    """Both find the canary, the peer later and in more steps; only one finds each of the others."""
    return [
        found(peers, "simulated", "canary", 0.5, 1.0, 2),
        found(peers, "fast-check", "canary", 1.0, 3.0, 4),
        found(peers, "simulated", "shared-cursor", 0.1, 0.2, 1),
        peers.Hunt("fast-check", "shared-cursor", 0, None),
        peers.Hunt("simulated", "offsets-skip", 0, None),
        found(peers, "fast-check", "offsets-skip", 9.0, 9.0, 9, cut_off=True),
    ]


def test_medians_are_over_what_was_found(peers, hunts):
    assert words(peers.medians(hunts, "simulated")) == "simulated 2 of 3 0.30 s 0.60 s 1.5 0"


def test_a_hunt_whose_shrinking_was_cut_off_is_counted(peers, hunts):
    assert peers.medians(hunts, "fast-check").split()[-1] == "1"


def test_ratios_are_over_what_both_found(peers, hunts):
    said = words(peers.ratios(hunts, "fast-check", "simulated"))
    assert said == "fast-check : simulated 2.00 x 3.00 x 2.0 x 0 of 1 1, 1"


def test_a_defect_that_one_tool_did_not_try_is_not_found_alone_by_the_other(peers, hunts):
    tried = [hunt for hunt in hunts if (hunt.tool, hunt.defect) != ("fast-check", "shared-cursor")]
    assert peers.ratios(tried, "fast-check", "simulated").endswith(" 1, 0")


def test_the_goals_leave_out_defects_that_need_concurrency(peers, hunts):
    race = found(peers, "simulated", "double-claim", 50.0, 50.0, 3)
    assert list(peers.goals([*hunts, race])) == list(peers.goals(hunts))


def test_nothing_is_said_of_a_peer_that_is_not_better(peers, hunts):
    assert list(peers.peer_is_better(hunts)) == []


def test_it_is_said_where_a_peer_is_better(peers, hunts):
    hunts[1] = found(peers, "fast-check", "canary", 0.4, 3.0, 1)
    assert list(peers.peer_is_better(hunts)) == [
        "fast-check is better than simulated: sooner in 1 of 1, with fewer steps in 1 of 1"
    ]


def test_what_was_missed_is_named(peers, hunts):
    assert list(peers.not_found(hunts, "fast-check")) == ["not found by fast-check: shared-cursor"]


def test_fast_check_is_skipped_with_a_reason_where_there_is_no_node(peers, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(peers.Unavailable, match="there is no node"):
        peers.install_fast_check(tmp_path)
