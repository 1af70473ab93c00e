"""The exact search by itself: what it explains, what it rejects, and where it says that it does not know."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

import contract.exact
from contract.exact import Finding, explain
from contract.exact.values import same_value
from contract.exact.zone import NOW, ZERO, Zone
from contract.history import ExtendCall
from contract.history_builder import HistoryBuilder


def finding(h: HistoryBuilder) -> Finding:
    return explain(h.history()).finding


def leased(seconds: int = 2) -> tuple[HistoryBuilder, str]:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    return h, h.pop("G", "p", ["m1"], lease_s=seconds)


def test_an_explanation_is_an_order_of_acts() -> None:
    h, lease = leased()
    h.ack("G", ["m1"], lease=lease)
    answer = explain(h.history())
    assert answer.order == (
        "call 1 stores item 0",
        "call 1 stores item 1",
        "call 2 takes",
        "call 3 settles completed",
    )


def test_a_rejection_names_what_cannot_follow() -> None:
    h, _ = leased()
    h.pop("G", "p", ["m2"], worker=1)
    answer = explain(h.history())
    assert answer.finding is Finding.REJECTED
    assert answer.order[-1] == "call 2 takes"
    assert answer.why == "not explained: call 3 takes"


def test_a_spent_budget_is_undecided() -> None:
    h, _ = leased()
    answer = explain(h.history(), nodes=1)
    assert answer.finding is Finding.UNDECIDED
    assert "nodes" in answer.why


def test_a_deleted_queue_is_unsupported() -> None:
    h, _ = leased()
    h.delete_queue()
    answer = explain(h.history())
    assert (answer.finding, answer.why) == (Finding.UNSUPPORTED, "a queue is deleted")


def test_an_unknown_option_is_unsupported() -> None:
    h = HistoryBuilder()
    h.configure(delayedProcessing=5)
    assert finding(h) is Finding.UNSUPPORTED


def test_nothing_is_explained_by_nothing() -> None:
    assert finding(HistoryBuilder()) is Finding.EXPLAINED


@pytest.mark.parametrize(("ms", "expected"), [(1999, Finding.REJECTED), (2000, Finding.EXPLAINED)])
def test_a_lease_lives_as_long_as_it_was_asked_for(ms: int, expected: Finding) -> None:
    h, _ = leased(2)
    h.advance(ms)
    h.pop("G", "p", ["m1"], worker=1)
    assert finding(h) is expected


@pytest.mark.parametrize(("ms", "expected"), [(2000, Finding.EXPLAINED), (2001, Finding.REJECTED)])
def test_after_a_lease_an_empty_pop_has_no_excuse(ms: int, expected: Finding) -> None:
    h, _ = leased(2)
    h.advance(ms)
    h.pop("G", "p", [], worker=1)
    assert finding(h) is expected


def test_an_empty_pop_and_a_served_one_need_one_story_of_the_extension() -> None:
    h, lease = leased(2)
    h.begin("G/0", ExtendCall("q", "G", lease, 5)).lost()
    h.advance(3000)
    h.pop("G", "p", [], worker=1)
    h.pop("G", "p", ["m1"], worker=2)
    assert finding(h) is Finding.REJECTED


@pytest.mark.parametrize(("again", "expected"), [("m1", Finding.EXPLAINED), ("m2", Finding.EXPLAINED)])
def test_an_unanswered_ack_acted_or_not(again: str, expected: Finding) -> None:
    h, lease = leased()
    h.begin_ack("G", ["m1"], lease=lease).lost()
    h.advance(2001)
    h.pop("G", "p", [again])
    assert finding(h) is expected


def test_an_unanswered_ack_does_not_act_and_not_act() -> None:
    h, lease = leased()
    h.begin_ack("G", ["m1"], lease=lease).lost()
    h.advance(2001)
    h.pop("G", "p", ["m2"])
    h.advance(2001)
    h.pop("G", "p", ["m1"])
    assert finding(h) is Finding.REJECTED


@pytest.mark.parametrize(("run", "expected"), [(["m1", "m2"], Finding.EXPLAINED), (["m2"], Finding.EXPLAINED)])
def test_a_nack_has_two_readings(run: list[str], expected: Finding) -> None:
    h = HistoryBuilder()
    h.push("p", "m1", "m2", "m3")
    lease = h.pop("G", "p", ["m1", "m2"])
    h.ack("G", ["m2"], lease=lease, statuses="retry")
    h.pop("G", "p", run)
    assert finding(h) is expected


@pytest.mark.parametrize(("filed", "expected"), [(True, Finding.EXPLAINED), (False, Finding.REJECTED)])
def test_a_spent_budget_is_answered(filed: bool, expected: Finding) -> None:
    h = HistoryBuilder()
    h.configure(retryLimit=0)
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1"])
    h.ack("G", ["m1"], lease=lease, statuses="failed", dead_lettered=filed)
    h.pop("G", "p", ["m2"])
    assert finding(h) is expected


@pytest.mark.parametrize("run", [["m2"], ["m1", "m2"]])
def test_a_push_beside_a_first_pop_is_in_or_out(run: list[str]) -> None:
    h = HistoryBuilder()
    push = h.begin_push("p", "m1")
    h.pop("G", None, [], mode="new")
    push.ok(h.push_result(["m1"]), 201)
    h.push("p", "m2")
    h.pop("G", None, run, mode="new")
    assert finding(h) is Finding.EXPLAINED


def test_a_broker_reads_named_first_pops_one_way() -> None:
    """A pop of p either starts the group in r as well, or it does not, the same for both groups."""
    h = HistoryBuilder()
    h.push("r", "m1")
    h.push("p", "m2")
    for group in ("G", "H"):
        h.pop(group, "p", [], mode="new")
    h.push("r", "m3")
    h.pop("G", None, ["m3"], mode="new")  # it started r as well
    h.pop("H", None, [], mode="new")  # it did not
    assert finding(h) is Finding.REJECTED


def test_items_of_one_request_keep_their_order() -> None:
    h = HistoryBuilder()
    h.begin_push("p", "m1", "m2").lost()
    h.pop("G", "p", ["m2", "m1"])
    assert finding(h) is Finding.REJECTED


@pytest.mark.parametrize(("status", "expected"), [("duplicate", Finding.EXPLAINED), ("queued", Finding.REJECTED)])
def test_an_id_is_remembered(status: str, expected: Finding) -> None:
    h = HistoryBuilder()
    h.push("p", "m1", transaction_ids=["a"])
    opened = h.begin_push("p", "m2", transaction_ids=["a"])
    opened.ok(h.push_result(["m1" if status == "duplicate" else "m2"], [status]), 201)
    assert finding(h) is expected


@pytest.mark.parametrize(("answer", "expected"), [((True, 1), Finding.EXPLAINED), ((False, 0), Finding.REJECTED)])
def test_a_live_lease_is_extended(answer: tuple[bool, int], expected: Finding) -> None:
    h, lease = leased()
    h.extend("G", lease, 5, success=answer[0])
    assert finding(h) is expected


def test_attempts_are_counted() -> None:
    h = HistoryBuilder()
    h.push("p", "m1")
    for attempt in (1, 3):
        h.attempt = attempt
        h.pop("G", "p", ["m1"])
        h.advance(2001)
    assert finding(h) is Finding.REJECTED


def test_another_profile_gives_more_time() -> None:
    h = HistoryBuilder(profile="2.x")
    h.push("p", "m1")
    h.pop("G", "p", ["m1"], lease_s=1)
    h.advance(1200)
    h.pop("G", "p", [], worker=1)
    assert finding(h) is Finding.EXPLAINED


def test_payloads_are_values() -> None:
    h = HistoryBuilder()
    h.push("p", "m1", payloads=['{"a": 1.0, "b": true}'])
    h.pop("G", "p", ["m1"], payloads=['{"b":true,"a":1}'])
    assert finding(h) is Finding.EXPLAINED


@pytest.mark.parametrize(("first", "second"), [("1", "true"), ("0.1", "0.1000000000000000055"), ('"1"', "1")])
def test_other_values_are_other_values(first: str, second: str) -> None:
    assert not same_value(first, second)


def test_a_zone_keeps_differences() -> None:
    zone = Zone().later(1000, 2000)
    assert zone is not None
    ended = zone.with_end("lease", 500).later(0, 3000)
    assert ended is not None
    over = ended.limit("lease", NOW, 0)
    assert over is not None
    assert over.most(ZERO, NOW) == -1500
    assert over.limit(NOW, ZERO, 1499) is None


def test_equal_zones_are_equal() -> None:
    first = Zone().later(0, 10)
    second = Zone().later(0, 20)
    assert first is not None
    assert second is not None
    assert second.limit(NOW, ZERO, 10) == first


def test_the_search_knows_neither_the_checks_nor_the_broker() -> None:
    for path in Path(contract.exact.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names.append(node.module or "")
            assert not [name for name in names if name.startswith(("contract.checks", "contract.judge", "reference_"))]


def test_a_history_is_not_changed_by_a_search() -> None:
    h, _ = leased()
    history = h.history()
    before = msgspec.json.encode(history)
    explain(history)
    assert msgspec.json.encode(history) == before
