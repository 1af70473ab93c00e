"""Pairs of histories that differ in one event or one time: the judge passes the first and fails the second.

Each pair is one function with the one difference as its parameter; the table says which rule must fail, and that it
is the headline where a reader would call it by that name.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
import pytest

from contract.history import AckResult, ExtendCall, ExtendResult, Return
from contract.history_builder import HistoryBuilder, Stored
from contract.judge import headline, judge
from contract.rules import RULES
from contract.verdicts import Verdict

Pair = Callable[[bool], HistoryBuilder]
PAIRS: list[tuple[str, Pair]] = []


def near_miss(rule: str) -> Callable[[Pair], Pair]:
    def register(pair: Pair) -> Pair:
        PAIRS.append((rule, pair))
        return pair

    return register


def named(value: object) -> str:
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("rule", "pair"), PAIRS, ids=named)
def test_the_legal_one_passes_with_evidence(rule: str, pair: Pair) -> None:
    judgement = judge(pair(False).history())
    assert judgement.failed == ()
    assert judgement[rule].verdict is Verdict.PASS


@pytest.mark.parametrize(("rule", "pair"), PAIRS, ids=named)
def test_the_illegal_one_fails_by_that_rule(rule: str, pair: Pair) -> None:
    judgement = judge(pair(True).history())
    assert rule in judgement.failed
    assert judgement.errors == ()


@pytest.mark.parametrize(("rule", "pair"), PAIRS, ids=named)
def test_the_headline_names_a_rule_that_fails(rule: str, pair: Pair) -> None:
    judgement = judge(pair(True).history())
    first = headline(judgement)
    assert first is not None
    assert first.rule in judgement.failed
    assert first.expected
    assert first.observed


def test_every_rule_has_a_pair() -> None:
    assert {rule for rule, _ in PAIRS} == set(RULES)


@near_miss("push/stored-is-delivered")
def a_stored_message_is_lost(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.push("p", "m2")
    h.audit({"p": ["m1"]} if bad else None)
    h.drain({("G", "p"): ["m1"] if bad else ["m1", "m2"]})
    return h


@near_miss("push/stored-is-delivered")
def the_cursor_passes_a_message_that_is_stored(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2", "m3")
    lease = h.pop("G", "p", ["m1"])
    h.ack("G", ["m1"], lease=lease)
    if bad:
        lease = h.pop("G", "p", ["m3"])
        h.ack("G", ["m3"], lease=lease)
    h.audit()
    h.drain({("G", "p"): [] if bad else ["m2", "m3"]})
    return h


@near_miss("push/no-phantom")
def a_message_that_nobody_pushed(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    if bad:
        h.stored["ghost"] = Stored("p", "ghost", '"boo"')
    else:
        h.begin_push("p", "ghost").lost()
    h.place("p", "ghost")
    h.audit()
    h.drain({("G", "p"): ["m1", "ghost"]})
    return h


@near_miss("push/refused-is-not-delivered")
def a_refused_message_is_delivered(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.begin_push("p", "m2").refused(400, "bad request")
    if bad:
        h.place("p", "m2")
    h.audit()
    h.drain({("G", "p"): h.order["p"]})
    return h


@near_miss("push/refused-is-not-delivered")
def an_item_that_was_answered_failed_is_delivered(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2", statuses=["queued", "failed"])
    if bad:
        h.stored["m2 after all"] = h.stored["m2"]
        h.place("p", "m2 after all")
    h.audit()
    h.drain({("G", "p"): h.order["p"]})
    return h


@near_miss("push/stored-once")
def a_push_stored_twice(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", payloads=["1"])
    opened = h.begin_push("p", "copy", payloads=["1"])
    opened.lost()
    opened.effect_end(acted=False if bad else None)
    h.place("p", "copy")
    h.audit()
    h.drain({("G", "p"): ["m1", "copy"]})
    return h


@near_miss("push/stored-once")
def one_id_at_two_places(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    if bad:
        h.place("p", "m1")
    h.audit()
    h.drain({("G", "p"): ["m1", "m2"]})
    return h


@near_miss("push/one-result-per-item")
def a_push_with_a_result_too_few(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.begin_push("p", "m2", "m3").lost("1 results for 2 items" if bad else "connection broken")
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@near_miss("ack/one-result-per-item")
def an_ack_with_a_result_too_many(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1"])
    h.ack("G", ["m1"], lease=lease)
    lease = h.pop("G", "p", ["m2"])
    h.begin_ack("G", ["m2"], lease=lease).lost("2 results for 1 items" if bad else "connection broken")
    h.audit()
    h.drain({("G", "p"): []})
    return h


@near_miss("push/identity-unchanged")
def a_transaction_id_is_changed(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", transaction_ids=["Order-1"])
    if bad:
        h.stored["m1"] = Stored("p", "order-1", h.stored["m1"].payload)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@near_miss("push/identity-unchanged")
def a_message_comes_out_of_another_partition(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.push("r", "m2")
    if bad:
        h.stored["m2"] = Stored("p", "m2", h.stored["m2"].payload)
        h.order = {"p": ["m1", "m2"]}
    h.audit()
    return h


@near_miss("push/payload-unchanged")
def a_number_loses_its_last_digit(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", payloads=["18446744073709551617"])
    h.pop("G", "p", ["m1"], payloads=["18446744073709551616" if bad else "18446744073709551617.0"])
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@near_miss("order/push-order")
def a_later_push_stored_first(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    first = h.begin_push("p", "m1")
    if bad:
        first.ok(h.push_result(["m1"]), 201)
    second = h.begin_push("p", "m2")
    second.ok(h.push_result(["m2"]), 201)
    if not bad:
        first.ok(h.push_result(["m1"]), 201)
    h.push("p", "m3")
    h.order["p"] = ["m2", "m1", "m3"]
    h.audit()
    h.drain({("G", "p"): ["m2", "m1", "m3"]})
    return h


@near_miss("order/push-order")
def items_of_one_request_turned_round(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    if bad:
        h.order["p"] = ["m2", "m1"]
    h.audit()
    h.drain({("G", "p"): h.order["p"]})
    return h


@near_miss("order/one-order-for-all")
def a_redelivery_in_another_order(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    pushes = [h.begin_push("p", name) for name in ("m1", "m2")]
    for opened, name in zip(pushes, ("m1", "m2"), strict=True):
        opened.ok(h.push_result([name]), 201)
    h.place("p", "m1", "m2")
    h.pop("G", "p", ["m1", "m2"])
    h.advance(2001)
    h.pop("G", "p", ["m2", "m1"] if bad else ["m1", "m2"])
    h.audit()
    h.drain({("G", "p"): ["m1", "m2"]})
    return h


@near_miss("order/no-gap-in-batch")
def a_message_left_out_inside_a_batch(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2", "m3")
    h.pop("G", "p", ["m1", "m3"] if bad else ["m1", "m2"])
    h.audit()
    h.drain({("G", "p"): ["m1", "m2", "m3"]})
    return h


@near_miss("order/starts-at-cursor")
def the_next_batch_skips_one(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2", "m3")
    lease = h.pop("G", "p", ["m1"])
    h.ack("G", ["m1"], lease=lease)
    h.pop("G", "p", ["m3"] if bad else ["m2", "m3"])
    h.audit()
    h.drain({("G", "p"): ["m2", "m3"]})
    return h


@near_miss("order/starts-at-cursor")
def a_skip_seen_without_an_audit(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    for name in ("m1", "m2", "m3"):
        h.push("p", name)
    lease = h.pop("G", "p", ["m1"])
    h.ack("G", ["m1"], lease=lease)
    h.pop("G", "p", ["m3"] if bad else ["m2"])
    return h


@near_miss("order/starts-at-cursor")
def a_stale_ack_moves_the_cursor_late(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1"])
    ack = h.begin_ack("G", ["m1"], lease=lease if bad else None)
    ack.lost()
    h.advance(2001)
    h.pop("G", "p", ["m1"])
    h.advance(2001)
    h.pop("G", "p", ["m2"])
    h.audit()
    h.drain({("G", "p"): ["m2"]})
    return h


@near_miss("group/independent-cursor")
def another_group_is_starved_by_an_ack(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1"])
    h.ack("G", ["m1"], lease=lease)
    h.pop("H", "p", ["m2"] if bad else ["m1", "m2"])
    h.audit()
    h.drain({("G", "p"): ["m2"], ("H", "p"): ["m2"] if bad else ["m1", "m2"]})
    return h


@near_miss("group/independent-cursor")
def another_group_finds_nothing_after_an_ack(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    h.ack("G", ["m1"], lease=lease)
    h.audit()
    h.drain({("G", "p"): [], ("H", "p"): [] if bad else ["m1"]})
    return h


@near_miss("group/start-position")
def a_new_group_is_given_an_old_message(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.pop("G", None, ["m1"], mode="new" if bad else "all")
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@near_miss("group/start-position")
def an_all_group_starts_at_the_tail(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.pop("G", "p", [], mode="all" if bad else "new")
    h.push("p", "m2")
    h.pop("G", "p", ["m2"], mode="all" if bad else "new")
    h.audit()
    h.drain({("G", "p"): ["m2"]})
    return h


@near_miss("group/start-position")
def a_parked_new_group_loses_the_message_that_wakes_it(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    parked = h.begin_pop("G", None, wait_ms=5000, mode="new")
    h.advance(1000)
    h.push("p", "m2")
    h.push("p", "m3")
    parked.messages(["m3"] if bad else ["m2", "m3"], lease="L1")
    h.audit()
    h.drain({("G", "p"): ["m3"] if bad else ["m2", "m3"]})
    return h


@near_miss("lease/exclusive")
def a_second_worker_is_served_under_a_lease(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.pop("G", "p", ["m1"], lease_s=2)
    h.advance(1000)
    h.pop("G", "p", [], worker=2)
    h.advance(999 if bad else 1001)
    h.pop("G", "p", ["m1"], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@near_miss("lease/exclusive")
def two_pops_at_one_moment_are_both_served(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    first = h.begin_pop("G", "p")
    second = h.begin_pop("G", "p", worker=1)
    first.messages(["m1"], lease="L1")
    second.messages(["m1"] if bad else [], lease="L2" if bad else "")
    h.pop("G", "p", [], worker=2)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@near_miss("lease/exclusive")
def a_fresh_message_beside_a_leased_one(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.pop("G", "p", ["m1"])
    h.push("p", "m2")
    h.pop("G", "p", ["m2"] if bad else [], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m1", "m2"]})
    return h


@near_miss("lease/exclusive")
def a_partial_ack_keeps_the_lease(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1", "m2"])
    h.ack("G", ["m1"], lease=lease)
    h.pop("G", "p", ["m2"] if bad else [], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m2"]})
    return h


@near_miss("lease/redelivered-after-expiry")
def a_crashed_consumers_batch_never_comes_again(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.pop("G", "p", ["m1"])
    h.fault("crash-consumer")
    h.audit()
    h.drain({("G", "p"): [] if bad else ["m1"]})
    return h


@near_miss("lease/redelivered-after-expiry")
def an_empty_pop_after_the_expiry(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.pop("G", "p", ["m1"], lease_s=2)
    h.advance(2001 if bad else 1999)
    h.pop("G", "p", [], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@near_miss("delivery/not-after-ack")
def an_acked_message_comes_again(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1"])
    h.ack("G", ["m1"], lease=lease)
    h.kill()
    h.pop("G", "p", ["m1"] if bad else ["m2"])
    h.audit()
    h.drain({("G", "p"): ["m2"]})
    return h


@near_miss("ack/stale-lease-refused")
def an_ack_under_an_expired_lease_is_accepted(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    old = h.pop("G", "p", ["m1"])
    h.advance(2001)
    h.pop("G", "p", ["m1"], worker=1)
    h.ack("G", ["m1"], lease=old, success=bad)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@near_miss("ack/stale-lease-refused")
def an_ack_under_a_made_up_lease_is_accepted(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.pop("G", "p", ["m1"])
    h.ack("G", ["m1"], lease="made up", success=bad)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@near_miss("order/offsets-dense")
def an_offset_is_left_out(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    h.offsets = {"m1": 0, "m2": 2 if bad else 1}
    h.audit()
    h.drain({("G", "p"): ["m1", "m2"]})
    return h


@near_miss("order/offsets-dense")
def two_messages_have_one_offset(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    h.offsets = {"m1": 0, "m2": 0 if bad else 1}
    h.pop("G", "p", ["m1", "m2"])
    return h


@near_miss("group/independent-lease")
def another_groups_lease_hides_the_partition(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.pop("G", "p", ["m1"])
    h.pop("H", "p", [] if bad else ["m1"])
    h.audit()
    h.drain({("G", "p"): ["m1"], ("H", "p"): ["m1"]})
    return h


@near_miss("group/start-decided-once")
def a_later_pop_moves_the_start(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.pop("G", None, [], mode="new")
    h.push("p", "m2")
    h.pop("G", None, ["m1", "m2"] if bad else ["m2"], mode="all")
    h.audit()
    h.drain({("G", "p"): ["m2"]})
    return h


@near_miss("group/start-decided-once")
def a_later_new_pop_hides_what_all_asked_for(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.pop("G", None, [], mode="all")
    h.push("p", "m1")
    h.audit()
    h.phase("drain")
    if bad:
        h.pop("G", None, [], mode="new")
    else:
        h.ack("G", ["m1"], lease=h.pop("G", None, ["m1"], mode="new"))
    h.pop("", "p", ["m1"])
    h.phase_end("drain")
    return h


@near_miss("group/new-partition-from-first")
def a_later_partition_is_read_from_its_end(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.pop("G", None, [], mode="new")
    h.push("p", "m1")
    h.push("p", "m2")
    h.pop("G", None, ["m2"] if bad else ["m1", "m2"], mode="new")
    h.audit()
    h.drain({("G", "p"): ["m2"] if bad else ["m1", "m2"]})
    return h


@near_miss("group/no-group-starts-at-oldest")
def the_queue_mode_starts_at_the_tail(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.pop("", "p", [] if bad else ["m1"])
    h.audit()
    h.drain({("", "p"): [] if bad else ["m1"], ("H", "p"): ["m1"]})
    return h


@near_miss("lease/not-before-expiry")
def a_batch_comes_again_before_its_lease_is_over(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.pop("G", "p", ["m1"], lease_s=2)
    h.advance(1990 if bad else 2000)
    h.pop("G", "p", ["m1"], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@near_miss("lease/one-lease-covers-the-call")
def one_message_carries_another_lease(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    opened = h.begin_pop("G", "p")
    result = h.pop_result(opened.request, ["m1", "m2"], "L1")
    leases = ("L1", "L2") if bad else ("L1", "L1")
    opened.ok(msgspec.structs.replace(result, lease_ids=leases))
    h.audit()
    h.drain({("G", "p"): ["m1", "m2"]})
    return h


@near_miss("lease/extend-extends-all")
def an_extended_lease_ends_at_its_first_end(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"], lease_s=2)
    h.extend("G", lease, 10)
    h.advance(3000)
    h.pop("G", "p", [], worker=2)
    h.pop("G", "p", ["m1"] if bad else [], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@near_miss("lease/dead-lease-stays-dead")
def an_extension_revives_a_lease(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"], lease_s=2)
    h.advance(2001)
    h.extend("G", lease, 10, success=bad)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@near_miss("lease/unreceived-claim-comes-back")
def a_client_that_left_keeps_its_claim(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    parked = h.begin_pop("G", "p", wait_ms=5000, lease_s=2)
    h.advance(100)
    parked.lost()
    h.advance(3000)
    h.push("p", "m1")
    h.pop("G", "p", [] if bad else ["m1"], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@near_miss("delivery/within-batch-budget")
def a_pop_gives_more_than_its_batch(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2", "m3")
    h.pop("G", "p", ["m1", "m2", "m3"] if bad else ["m1", "m2"], batch=2)
    h.audit()
    h.drain({("G", "p"): ["m1", "m2", "m3"]})
    return h


@near_miss("delivery/within-partition-budget")
def a_pop_claims_more_partitions_than_asked_for(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.push("r", "m2")
    h.pop("G", None, ["m1", "m2"] if bad else ["m1"])
    h.audit()
    h.drain({("G", "p"): ["m1"], ("G", "r"): ["m2"]})
    return h


@near_miss("delivery/auto-ack-once")
def an_auto_ack_message_comes_again(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    h.pop("G", "p", ["m1"], auto_ack=True, batch=1)
    h.pop("G", "p", ["m1"] if bad else ["m2"])
    h.audit()
    h.drain({("G", "p"): ["m2"]})
    return h


@near_miss("delivery/attempt-counter")
def the_attempt_starts_again_after_a_partial_ack(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    h.attempt = 1
    lease = h.pop("G", "p", ["m1", "m2"])
    h.ack("G", ["m1"], lease=lease)
    h.advance(2001)
    h.attempt = 1 if bad else 2
    h.pop("G", "p", ["m2"])
    h.attempt = None
    h.audit()
    h.drain({("G", "p"): ["m2"]})
    return h


@near_miss("ack/completes-prefix")
def a_lower_message_comes_again(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2", "m3")
    lease = h.pop("G", "p", ["m1", "m2"])
    h.ack("G", ["m2"], lease=lease)
    h.pop("G", "p", ["m1", "m2"] if bad else ["m3"])
    h.audit()
    h.drain({("G", "p"): ["m3"]})
    return h


@near_miss("ack/failed-comes-back-first")
def a_failed_message_is_skipped(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1"])
    h.ack("G", ["m1"], lease=lease, statuses="failed")
    h.pop("G", "p", ["m2"] if bad else ["m1"])
    h.audit()
    h.drain({("G", "p"): ["m1", "m2"]})
    return h


@near_miss("ack/mixed-batch-stops-at-lowest")
def a_completed_message_above_a_failed_one_wins(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2", "m3")
    lease = h.pop("G", "p", ["m1", "m2"])
    h.ack("G", ["m1", "m2"], lease=lease, statuses=["failed", "completed"])
    h.audit()
    h.drain({("G", "p"): ["m3"] if bad else ["m1", "m2", "m3"]})
    return h


@near_miss("ack/retry-is-free")
def a_retry_is_counted_as_a_failure(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.configure(retryLimit=1)
    h.push("p", "m1")
    for status in ("retry", "failed"):
        lease = h.pop("G", "p", ["m1"])
        filed = bad and status == "failed"
        h.ack("G", ["m1"], lease=lease, statuses=status, dead_lettered=filed)
    h.audit()
    h.drain({("G", "p"): [] if bad else ["m1"]})
    return h


@near_miss("ack/budget-spent-once")
def a_failure_is_dead_lettered_too_early(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    for failure in range(1, 5):
        lease = h.pop("G", "p", ["m1"])
        h.ack("G", ["m1"], lease=lease, statuses="failed", dead_lettered=failure == (3 if bad else 4))
        if bad and failure == 3:
            break
    h.audit()
    h.drain({("G", "p"): []})
    return h


@near_miss("ack/budget-spent-once")
def a_failure_is_never_dead_lettered(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    for failure in range(1, 5):
        lease = h.pop("G", "p", ["m1"])
        h.ack("G", ["m1"], lease=lease, statuses="failed", dead_lettered=failure == 4 and not bad)
    h.audit()
    h.drain({("G", "p"): []})
    return h


@near_miss("ack/outside-batch-refused")
def an_ack_above_the_batch_is_accepted(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1"], batch=1)
    h.ack("G", ["m2"], lease=lease, success=bad)
    h.audit()
    h.drain({("G", "p"): [] if bad else ["m1", "m2"]})
    return h


@near_miss("ack/repeat-is-no-op")
def a_failed_below_the_cursor_is_accepted(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1", "m2"])
    h.ack("G", ["m1"], lease=lease)
    h.ack("G", ["m1"], lease=lease, statuses="failed", success=bad)
    h.audit()
    h.drain({("G", "p"): ["m2"]})
    return h


@near_miss("ack/repeat-is-no-op")
def a_completed_below_the_cursor_is_refused(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    h.ack("G", ["m1"], lease=lease)
    h.ack("G", ["m1"], lease=None, success=not bad, noop=not bad)
    h.audit()
    h.drain({("G", "p"): []})
    return h


@near_miss("ack/answer-matches-effect")
def a_completed_item_is_answered_as_a_dead_letter(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1", "m2"])
    h.ack("G", ["m1", "m2"], lease=lease, statuses=["completed", "dlq"], dead_lettered=[bad, True])
    h.audit()
    h.drain({("G", "p"): []})
    return h


@near_miss("ack/answer-matches-effect")
def a_lease_is_said_to_be_released_and_is_not(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1", "m2"])
    h.ack("G", ["m1"], lease=lease, released=bad)
    h.pop("G", "p", [], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m2"]})
    return h


@near_miss("ack/answer-matches-effect")
def a_refused_ack_moves_the_cursor(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    old = h.pop("G", "p", ["m1"], lease_s=1)
    h.advance(1001)
    h.pop("G", "p", ["m1"], lease_s=1)
    h.ack("G", ["m1"], lease=old, success=False)
    h.advance(1001)
    h.pop("G", "p", ["m2"] if bad else ["m1"])
    h.audit()
    h.drain({("G", "p"): ["m1", "m2"]})
    return h


@near_miss("group/start-position")
def an_auto_ack_pop_skips_the_first_message(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    h.pop("G", "p", ["m2"] if bad else ["m1"], auto_ack=True, batch=1)
    return h


@near_miss("order/starts-at-cursor")
def an_auto_ack_pop_skips_one(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2", "m3")
    h.pop("G", "p", ["m1"], auto_ack=True, batch=1)
    h.pop("G", "p", ["m3"] if bad else ["m2"], auto_ack=True, batch=1)
    return h


@near_miss("order/no-gap-in-batch")
def a_gap_seen_without_an_audit(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2", "m3")
    h.pop("G", "p", ["m1", "m3"] if bad else ["m1", "m2", "m3"])
    return h


@near_miss("order/offsets-dense")
def offsets_of_a_run_leave_one_out(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    h.offsets = {"m1": 0, "m2": 2 if bad else 1}
    h.pop("G", "p", ["m1", "m2"])
    return h


@near_miss("lease/extend-extends-all")
def an_extension_of_a_live_lease_is_refused(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    h.advance(1000)
    h.extend("G", lease, 2, success=not bad)
    return h


@near_miss("ack/answer-matches-effect")
def a_good_ack_is_refused(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    h.ack("G", ["m1"], lease=lease, success=not bad)
    return h


@near_miss("ack/answer-matches-effect")
def an_open_message_is_answered_as_a_no_op(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    h.ack("G", ["m1"], lease=lease, noop=bad)
    return h


@near_miss("ack/answer-matches-effect")
def the_last_ack_says_that_the_lease_stays(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    h.ack("G", ["m1"], lease=lease, released=not bad)
    return h


@near_miss("push/stored-is-delivered")
def an_unanswered_push_that_was_over_when_a_group_asked(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    push = h.begin_push("p", "m1")
    push.lost()
    push.effect_end()
    h.pop("H", "p", [] if bad else ["m1"])
    h.pop("G", "p", ["m1"])
    h.advance(2001)
    h.pop("G", "p", ["m1"])
    h.audit({"p": ["m1"]})
    h.drain({("H", "p"): ["m1"]})
    return h


@near_miss("push/no-phantom")
def a_message_comes_before_it_is_pushed(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.stored["m1"] = Stored("p", "m1", json.dumps({"n": "m1"}))
    if bad:
        h.pop("G", "p", ["m1"])
    h.push("p", "m1")
    if not bad:
        h.pop("G", "p", ["m1"])
    return h


@near_miss("lease/extend-extends-all")
def an_extension_renews_one_of_two_partitions(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.push("r", "m2")
    opened = h.begin_pop("G", None, partitions=2)
    opened.messages(["m1", "m2"], lease="L1")
    h.begin("G/0", ExtendCall("q", "G", "L1", 5)).ok(ExtendResult(True, 1 if bad else 2))
    return h


@near_miss("cursor/seek-replays")
def a_pop_after_a_seek_starts_in_the_middle(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1", "m2"])
    h.ack("G", ["m1"], lease=lease)
    h.seek("G")
    h.pop("G", "p", ["m2"] if bad else ["m1", "m2"])
    h.audit()
    return h


@near_miss("cursor/seek-replays")
def a_pop_after_a_seek_is_held_back_by_the_old_lease(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.pop("G", "p", ["m1"], lease_s=30)
    h.seek("G")
    h.pop("G", "p", [] if bad else ["m1"], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@near_miss("cursor/seek-replays")
def a_seek_back_shows_nothing_in_the_drain(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    h.ack("G", ["m1"], lease=lease)
    h.seek("G", "p")
    h.audit()
    h.drain({("G", "p"): [] if bad else ["m1"]})
    return h


@near_miss("cursor/seek-replays")
def a_late_ack_under_a_lease_that_a_seek_ended(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    h.seek("G")
    h.ack("G", ["m1"], lease=lease, success=False)
    h.audit()
    h.drain({("G", "p"): [] if bad else ["m1"]})
    return h


@near_miss("cursor/seek-to-end-skips")
def a_message_from_before_a_seek_to_the_end(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.push("p", "m2")
    h.pop("G", "p", ["m1"], batch=1, lease_s=1)
    h.advance(1001)
    h.seek("G", to_end=True)
    h.push("p", "m3")
    h.pop("G", "p", ["m2", "m3"] if bad else ["m3"])
    h.audit()
    return h


@near_miss("cursor/seek-only-this-group")
def another_group_goes_to_the_end(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    h.pop("G", "p", ["m1", "m2"])
    h.seek("G", to_end=True)
    h.push("p", "m3")
    h.pop("H", "p", ["m3"] if bad else ["m1", "m2", "m3"])
    h.audit()
    return h


@near_miss("cursor/seek-only-this-group")
def another_group_is_put_back(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    for group in ("G", "H"):
        lease = h.pop(group, "p", ["m1", "m2"])
        h.ack(group, ["m1", "m2"], lease=lease)
    h.seek("G")
    h.push("p", "m3")
    h.pop("H", "p", ["m1", "m2", "m3"] if bad else ["m3"])
    h.audit()
    return h


@near_miss("cursor/seek-only-this-group")
def another_group_hides_a_message_in_the_drain(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.pop("G", "p", ["m1"])
    h.seek("G", to_end=True)
    h.audit()
    h.drain({("H", "p"): [] if bad else ["m1"]})
    return h


@near_miss("lease/exclusive")
def a_seek_of_another_group_ends_a_lease(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.pop("H", "p", ["m1"])
    h.pop("G", "p", ["m1"])
    h.pop("G", "p", [], worker=1)
    h.seek("H" if bad else "G")
    h.pop("G", "p", ["m1"], worker=1)
    return h


@near_miss("ack/stale-lease-refused")
def an_ack_under_a_lease_that_a_seek_ended(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    h.seek("G")
    h.ack("G", ["m1"], lease=lease, success=bad)
    return h


@near_miss("delivery/not-after-ack")
def a_completed_message_comes_again_after_a_seek_and_an_ack(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder()
    h.push("p", "m1")
    h.seek("G")
    lease = h.pop("G", "p", ["m1"])
    h.ack("G", ["m1"], lease=lease)
    h.pop("G", "p", ["m1"] if bad else [])
    h.push("p", "m2")
    h.advance(2001)
    h.pop("G", "p", ["m2"])
    return h


@near_miss("push/stored-is-delivered")
def a_queued_message_does_not_survive_an_outage(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder(profile="1.x")
    h.push("p", "m1")
    h.push("p", "m2")
    h.outage(500)
    h.audit({"p": ["m1"]} if bad else None)
    h.drain({("G", "p"): ["m1"] if bad else ["m1", "m2"]})
    return h


@near_miss("delivery/not-after-ack")
def an_answered_ack_does_not_survive_an_outage(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder(profile="1.x")
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1", "m2"], lease_s=60)
    h.fault("storage-stop")
    h.ack("G", ["m1"], lease=lease)
    h.advance(500)
    h.fault("storage-start")
    h.audit()
    h.drain({("G", "p"): ["m1", "m2"] if bad else ["m2"]})
    return h


@near_miss("push/stored-is-delivered")
def an_empty_answer_long_after_an_outage(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder(profile="1.x")
    h.push("p", "m1")
    h.outage(500)
    h.advance(2001 if bad else 1999)
    h.pop("G", "p", [])
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@near_miss("push/stored-is-delivered")
def a_spooled_message_never_comes(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder(profile="2.x")
    h.push("p", "m1")
    h.fault("storage-stop")
    h.push("p", "m2", statuses=["buffered"])
    h.fault("storage-start")
    h.advance(10_000 if bad else 9_900)
    h.note("a moment before the audit")
    h.advance(1)
    h.phase("audit")
    h.pop("audit", "p", ["m1"], auto_ack=True, lease_s=None, batch=1000)
    h.pop("audit", "p", [], auto_ack=True, lease_s=None, batch=1000)
    h.phase_end("audit")
    return h


@near_miss("lease/redelivered-after-expiry")
def a_lease_keeps_its_partition_after_an_outage(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder(profile="2.x")
    h.push("p", "m1")
    h.pop("G", "p", ["m1"], lease_s=2)
    h.outage(500)
    h.advance(5000)
    h.pop("G", "p", [] if bad else ["m1"], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@near_miss("ack/answer-matches-effect")
def a_good_ack_is_refused_before_an_outage(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder(profile="2.x")
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1", "m2"])
    h.ack("G", ["m1"], lease=lease)
    h.advance(1)
    opened = h.begin_ack("G", ["m2"], lease=lease)
    if not bad:
        h.fault("storage-stop")
    opened.ok(AckResult((False,), ("invalid or expired lease",), (None,), (None,), (None,)))
    h.advance(1)
    if bad:
        h.fault("storage-stop")
    h.fault("storage-start")
    return h


@near_miss("lease/extend-extends-all")
def an_extension_is_refused_before_an_outage(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder(profile="2.x")
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"], lease_s=30)
    h.extend("G", lease, 30)
    h.advance(1)
    opened = h.begin("G/0", ExtendCall("q", "G", lease, 30))
    if not bad:
        h.fault("storage-stop")
    opened.ok(ExtendResult(False, 0))
    h.advance(1)
    if bad:
        h.fault("storage-stop")
    h.fault("storage-start")
    return h


@near_miss("group/start-position")
def a_new_group_starts_before_what_came_after_an_outage(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder(profile="1.x")
    h.push("p", "m1")
    h.fault("storage-stop")
    h.pop("G", None, [], mode="new")
    h.fault("storage-start")
    h.advance(5000)
    h.pop("G", None, [], mode="new")
    h.advance(5000)
    h.push("p", "m2")
    h.push("p", "m3")
    h.pop("G", None, ["m3"] if bad else ["m2"], mode="new", batch=1)
    h.audit()
    return h


@near_miss("push/refused-is-not-delivered")
def an_item_that_failed_before_an_outage_is_delivered(bad: bool) -> HistoryBuilder:
    h = HistoryBuilder(profile="2.x")
    h.push("p", "m1", "m2", statuses=["queued", "failed"])
    h.advance(1)
    if not bad:
        h.events.pop()
        h.fault("storage-stop")
        h.advance(1)
        h.events.append(Return(1, h.now_us, "ok", 201, result=h.push_result(["m1", "m2"], ["queued", "failed"])))
        h.fault("storage-start")
    else:
        h.outage(1)
    h.advance(5000)
    h.push("p", "m4", statuses=["failed"])
    h.stored["m2 after all"] = h.stored["m2"]
    h.place("p", "m2 after all")
    h.audit()
    h.drain({("G", "p"): h.order["p"]})
    return h


@near_miss("order/starts-at-cursor")
def a_pop_after_the_one_that_shows_a_seek(bad: bool) -> HistoryBuilder:
    """A seek without an answer excuses what was under way when it acted, and nothing that was sent later."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2", "m3")
    lease = h.pop("G", "p", ["m1", "m2"], batch=2)
    h.ack("G", ["m1", "m2"], lease=lease)
    h.begin_seek("G").lost()
    lease = h.pop("G", "p", ["m1"], batch=1)
    h.ack("G", ["m1"], lease=lease)
    h.pop("G", "p", ["m3"] if bad else ["m2"], batch=1, lease_s=9)
    h.audit()
    return h


@near_miss("lease/exclusive")
def an_unfenced_ack_that_could_act_no_more(bad: bool) -> HistoryBuilder:
    """What an answer left open releases a later lease only where it can still act by then."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    h.pop("H", "p", ["m1", "m2"])
    h.pop("H", "p", [])
    h.pop("G", "p", ["m1"], batch=1, lease_s=1)
    late = h.begin_ack("G", ["m1"], lease=None)
    late.ok(AckResult((False,), ("pool timed out",), (None,), (None,), (None,), frozenset({0})))
    if bad:
        late.effect_end()
    h.advance(1001)
    h.pop("G", "p", ["m1"], batch=1, lease_s=60)
    if not bad:
        late.effect_end()
    h.pop("G", "p", ["m2"], batch=1, lease_s=60)
    h.audit()
    return h


@near_miss("ack/budget-spent-once")
def a_failure_behind_an_auto_ack_pop(bad: bool) -> HistoryBuilder:
    """An autoAck pop may clear the count between two failures, and not where it was over before the first."""
    h = HistoryBuilder()
    h.configure(retryLimit=1)
    h.push("p", "m1", "m2")
    if bad:
        h.pop("G", "p", ["m1"], batch=1, auto_ack=True)
    first = "m2" if bad else "m1"
    lease = h.pop("G", "p", [first], batch=1)
    h.ack("G", [first], lease=lease, statuses="failed")
    if not bad:
        h.pop("G", "p", ["m1"], batch=1, auto_ack=True)
    lease = h.pop("G", "p", ["m2"], batch=1)
    h.ack("G", ["m2"], lease=lease, statuses="failed")
    h.audit()
    return h


@near_miss("ack/budget-spent-once")
def a_dead_letter_too_early_behind_an_unfenced_failure(bad: bool) -> HistoryBuilder:
    """A failure without a lease counts behind a dead letter only where it can still act by then."""
    h = HistoryBuilder()
    h.configure(retryLimit=1)
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1", "m2"])
    h.ack("G", ["m1"], lease=lease, statuses="failed")
    lease = h.pop("G", "p", ["m1", "m2"])
    late = h.begin_ack("G", ["m2"], lease=None, statuses="failed")
    late.lost()
    if bad:
        late.effect_end()
    h.ack("G", ["m1"], lease=lease, statuses="failed", dead_lettered=True)
    h.pop("G", "p", ["m2"])
    if not bad:
        late.effect_end()
    h.advance(2001)
    lease = h.pop("G", "p", ["m2"])
    h.ack("G", ["m2"], lease=lease, statuses="failed", dead_lettered=True)
    h.audit()
    return h


@near_miss("ack/stale-lease-refused")
def an_ack_after_every_possible_end_of_an_extended_lease(bad: bool) -> HistoryBuilder:
    """An extension without an answer acts before its lease is over, or not at all."""
    h = HistoryBuilder(profile="2.x")
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"], lease_s=2)
    h.begin("G/0", ExtendCall("q", "G", lease, 5)).lost()
    h.advance(7001)
    h.ack("G", ["m1"], lease=lease, success=bad)
    h.audit()
    return h


@near_miss("push/stored-is-delivered")
def a_spooled_message_never_comes_after_a_kill_of_a_paused_broker(bad: bool) -> HistoryBuilder:
    """A broker that was killed while it was paused is whole when it is started."""
    h = HistoryBuilder(profile="2.x")
    h.fault("storage-stop")
    h.push("p", "m1", statuses=["buffered"])
    h.fault("storage-start")
    h.fault("pause")
    h.kill()
    if not bad:
        h.unspool("m2", "m1")
    h.advance(20_000)
    h.audit()
    h.drain({("G", "p"): [] if bad else ["m2"]})
    return h


@near_miss("ack/budget-spent-once")
def a_dead_letter_too_early_behind_a_seek(bad: bool) -> HistoryBuilder:
    """A seek clears what failed before it, and not what may fail behind it."""
    h = HistoryBuilder()
    h.configure(retryLimit=1)
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    if bad:
        h.ack("G", ["m1"], lease=lease, statuses="failed")
    h.seek("G")
    lease = h.pop("G", "p", ["m1"])
    if not bad:
        h.ack("G", ["m1"], lease=lease, statuses="failed")
        lease = h.pop("G", "p", ["m1"])
    h.ack("G", ["m1"], lease=lease, statuses="failed", dead_lettered=True)
    h.audit()
    return h
