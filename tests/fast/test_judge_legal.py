"""Legal histories that naive checkers flag: the judge passes each of them.

One function a history; its docstring is the reason why it is legal.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from contract.history import AckResult, DoneResult, ExtendCall, ExtendResult, PushResult, SeekCall
from contract.history_builder import HistoryBuilder
from contract.judge import judge
from contract.verdicts import Verdict

LEGAL: list[Callable[[], HistoryBuilder]] = []


def legal(scenario: Callable[[], HistoryBuilder]) -> Callable[[], HistoryBuilder]:
    LEGAL.append(scenario)
    return scenario


@pytest.mark.parametrize("scenario", LEGAL, ids=lambda scenario: scenario.__name__)
def test_a_legal_history_passes(scenario: Callable[[], HistoryBuilder]) -> None:
    judgement = judge(scenario().history())
    bad = [v for v in judgement.rules if v.verdict in (Verdict.FAIL, Verdict.ERROR)]
    assert not bad, [(v.rule, v.reason, [(x.expected, x.observed) for x in v.violations]) for v in bad]


@legal
def clean_run() -> HistoryBuilder:
    """Two groups read and ack everything in order."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    h.push("p", "m3")
    lease = h.pop("G", "p", ["m1", "m2"])
    h.ack("G", ["m1", "m2"], lease=lease)
    h.audit()
    h.drain({("G", "p"): ["m3"], ("H", "p"): ["m1", "m2", "m3"]})
    return h


@legal
def redelivery_after_expiry() -> HistoryBuilder:
    """The lease ran out without an ack, so the batch comes again."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    h.pop("G", "p", ["m1", "m2"], lease_s=2)
    h.advance(2001)
    lease = h.pop("G", "p", ["m1", "m2"], worker=1)
    h.ack("G", ["m1", "m2"], lease=lease, worker=1)
    h.audit()
    h.drain({("G", "p"): []})
    return h


@legal
def unanswered_push_that_is_delivered() -> HistoryBuilder:
    """A push without an answer may have been stored."""
    h = HistoryBuilder()
    h.begin_push("p", "m1").lost()
    h.place("p", "m1")
    h.push("p", "m2")
    h.audit()
    h.drain({("G", "p"): ["m1", "m2"]})
    return h


@legal
def unanswered_push_that_is_not_delivered() -> HistoryBuilder:
    """A push without an answer may not have been stored."""
    h = HistoryBuilder()
    h.begin_push("p", "m1").lost()
    h.push("p", "m2")
    h.audit()
    h.drain({("G", "p"): ["m2"]})
    return h


@legal
def unanswered_push_that_is_stored_behind_a_later_one() -> HistoryBuilder:
    """A push without an answer may act late, behind pushes that were sent after it."""
    h = HistoryBuilder()
    h.begin_push("p", "m1").lost()
    h.push("p", "m2")
    h.place("p", "m1")
    h.audit()
    h.drain({("G", "p"): ["m2", "m1"]})
    return h


@legal
def unanswered_ack_followed_by_a_redelivery() -> HistoryBuilder:
    """An ack without an answer may not have acted."""
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    h.begin_ack("G", ["m1"], lease=lease).lost()
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def unanswered_ack_followed_by_nothing() -> HistoryBuilder:
    """An ack without an answer may have acted."""
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    h.begin_ack("G", ["m1"], lease=lease).lost()
    h.audit()
    h.drain({("G", "p"): []})
    return h


@legal
def unanswered_ack_that_acts_after_a_redelivery() -> HistoryBuilder:
    """An unleased ack without an answer is not fenced: it may act after the message came again."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    h.pop("G", "p", ["m1"])
    h.begin_ack("G", ["m1"], lease=None).lost()
    h.advance(2001)
    h.pop("G", "p", ["m1"])
    h.advance(2001)
    h.pop("G", "p", ["m2"])
    h.audit()
    h.drain({("G", "p"): ["m2"]})
    return h


@legal
def unknown_auto_ack_pop_skips_what_it_took() -> HistoryBuilder:
    """An autoAck pop without an answer may have committed up to its batch."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2", "m3")
    h.begin_pop("G", "p", batch=2, auto_ack=True).lost()
    h.pop("G", "p", ["m3"])
    h.audit()
    h.drain({("G", "p"): ["m3"]})
    return h


@legal
def unknown_auto_ack_pop_that_took_less() -> HistoryBuilder:
    """An autoAck pop without an answer may have committed a part of its batch, or nothing."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2", "m3")
    h.begin_pop("G", "p", batch=2, auto_ack=True).lost()
    h.pop("G", "p", ["m2"])
    h.audit()
    h.drain({("G", "p"): ["m2", "m3"]})
    return h


@legal
def parked_pop_older_than_its_lease() -> HistoryBuilder:
    """The lease of a parked pop counts from the moment it is served, not from when it was sent."""
    h = HistoryBuilder()
    first = h.begin_pop("G", "p", lease_s=1, wait_ms=5000)
    h.advance(3000)
    h.push("p", "m1")
    first.messages(["m1"], lease="L1")
    h.advance(500)
    h.pop("G", "p", [], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def new_group_starts_at_the_tail() -> HistoryBuilder:
    """A `new` group is given only what is pushed after its first pop."""
    h = HistoryBuilder()
    h.push("p", "m1")
    h.pop("G", None, [], mode="new")
    h.push("p", "m2")
    h.pop("G", None, ["m2"], mode="new")
    h.audit()
    h.drain({("G", "p"): ["m2"]})
    return h


@legal
def push_that_overlaps_the_first_pop_of_a_new_group() -> HistoryBuilder:
    """A push that was under way when the start was decided may be in or out; here it is out."""
    h = HistoryBuilder()
    h.push("p", "m1")
    push = h.begin_push("p", "m2")
    h.pop("G", None, [], mode="new")
    push.ok(h.push_result(["m2"]), 201)
    h.place("p", "m2")
    h.push("p", "m3")
    h.pop("G", None, ["m3"], mode="new")
    h.audit()
    h.drain({("G", "p"): ["m3"]})
    return h


@legal
def later_partition_of_a_new_group_is_read_from_its_first_message() -> HistoryBuilder:
    """The first pop decides for the queue; a partition that comes later is read from its first message."""
    h = HistoryBuilder()
    h.pop("G", None, [], mode="new")
    h.push("p", "m1")
    h.pop("G", "p", ["m1"], mode="new")
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def named_first_pop_leaves_other_partitions_undecided() -> HistoryBuilder:
    """A pop of a named partition may start only that one: the wildcard pop after it decides for the others."""
    h = HistoryBuilder(profile="1.x")
    h.push("p", "m1")
    h.push("r", "m2")
    h.pop("G", "p", [], mode="new")
    h.push("r", "m3")
    h.pop("G", None, [], mode="new")
    h.audit()
    h.drain({("G", "p"): [], ("G", "r"): []})
    return h


@legal
def two_possible_first_pops_with_their_own_modes() -> HistoryBuilder:
    """A first pop without an answer may have decided the start, by its own mode, or not."""
    h = HistoryBuilder()
    h.push("p", "m1")
    h.begin_pop("G", "p", mode="all").lost()
    h.pop("G", "p", [], mode="new", worker=1)
    h.push("p", "m2")
    h.advance(3000)
    h.pop("G", "p", ["m2"], mode="new", worker=1)
    h.audit()
    h.drain({("G", "p"): ["m2"]})
    return h


@legal
def lease_left_by_a_client_that_went_away() -> HistoryBuilder:
    """A pop whose client left may hold a lease for its whole length."""
    h = HistoryBuilder()
    h.push("p", "m1")
    h.begin_pop("G", "p", lease_s=2).lost()
    h.pop("G", "p", [], worker=1)
    h.advance(1000)
    h.pop("G", "p", [], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def concurrent_acks_of_one_batch() -> HistoryBuilder:
    """Two acks of one batch at the same time act in either order."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2", "m3")
    lease = h.pop("G", "p", ["m1", "m2"])
    first = h.begin_ack("G", ["m1"], lease=lease)
    second = h.begin_ack("G", ["m2"], lease=lease)
    for opened in (second, first):
        opened.lost()
    h.advance(2001)
    h.pop("G", "p", ["m3"])
    h.audit()
    h.drain({("G", "p"): ["m3"]})
    return h


@legal
def nack_releases_the_lease() -> HistoryBuilder:
    """A `retry` gives the lease back: another worker is served at once."""
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    h.ack("G", ["m1"], lease=lease, statuses="retry")
    h.pop("G", "p", ["m1"], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def nack_gives_lower_messages_again() -> HistoryBuilder:
    """A `failed` above messages that were not completed: these may come again too."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2", "m3")
    lease = h.pop("G", "p", ["m1", "m2", "m3"])
    h.ack("G", ["m3"], lease=lease, statuses="failed")
    h.pop("G", "p", ["m1", "m2", "m3"])
    h.audit()
    h.drain({("G", "p"): ["m1", "m2", "m3"]})
    return h


@legal
def nack_puts_the_cursor_just_below() -> HistoryBuilder:
    """A `failed` above messages that were not completed: the cursor may be put just below the failed one."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2", "m3")
    lease = h.pop("G", "p", ["m1", "m2", "m3"])
    h.ack("G", ["m3"], lease=lease, statuses="failed")
    h.pop("G", "p", ["m3"])
    h.audit()
    h.drain({("G", "p"): ["m3"]})
    return h


@legal
def completed_above_a_failed_comes_back() -> HistoryBuilder:
    """In a mixed batch the cursor stops at the lowest failed message."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2", "m3")
    lease = h.pop("G", "p", ["m1", "m2", "m3"])
    h.ack("G", ["m1", "m2", "m3"], lease=lease, statuses=["completed", "failed", "completed"])
    h.pop("G", "p", ["m2", "m3"])
    h.audit()
    h.drain({("G", "p"): ["m2", "m3"]})
    return h


@legal
def dead_letter_passes_lower_messages() -> HistoryBuilder:
    """A dead letter takes the cursor past the message and what lies below it."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2", "m3")
    lease = h.pop("G", "p", ["m1", "m2", "m3"])
    h.ack("G", ["m2"], lease=lease, statuses="dlq", dead_lettered=True)
    h.advance(2001)
    h.pop("G", "p", ["m3"])
    h.audit()
    h.drain({("G", "p"): ["m3"]})
    return h


@legal
def spent_budget_passes_the_message() -> HistoryBuilder:
    """With the retry budget spent a failed message is dead-lettered and passed."""
    h = HistoryBuilder()
    h.configure(retryLimit=1)
    h.push("p", "m1", "m2")
    for spent in (False, True):
        lease = h.pop("G", "p", ["m1"])
        h.ack("G", ["m1"], lease=lease, statuses="failed", dead_lettered=spent)
    h.pop("G", "p", ["m2"])
    h.audit()
    h.drain({("G", "p"): ["m2"]})
    return h


@legal
def unanswered_failed_ack_may_have_spent_the_budget() -> HistoryBuilder:
    """A `failed` without an answer may be the one that dead-letters the message."""
    h = HistoryBuilder()
    h.configure(retryLimit=0)
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1"])
    h.begin_ack("G", ["m1"], lease=lease, statuses="failed").lost()
    h.advance(2001)
    h.pop("G", "p", ["m2"])
    h.audit()
    h.drain({("G", "p"): ["m2"]})
    return h


@legal
def ack_of_an_id_that_occurs_twice() -> HistoryBuilder:
    """An id that was stored twice above the cursor: the ack may mean either message."""
    h = HistoryBuilder()
    h.configure(dedupWindowSeconds=0)
    h.push("p", "m1", transaction_ids=["a"])
    h.push("p", "m2", transaction_ids=["a"])
    lease = h.pop("G", "p", ["m1", "m2"])
    h.ack("G", ["m1"], lease=lease)
    h.advance(2001)
    h.audit()
    h.drain({("G", "p"): []})
    return h


@legal
def late_ack_is_refused() -> HistoryBuilder:
    """An ack under a lease that ran out and was taken again is refused and moves nothing."""
    h = HistoryBuilder()
    h.push("p", "m1")
    old = h.pop("G", "p", ["m1"])
    h.advance(2001)
    new = h.pop("G", "p", ["m1"], worker=1)
    h.ack("G", ["m1"], lease=old, success=False)
    h.ack("G", ["m1"], lease=new, worker=1)
    h.audit()
    h.drain({("G", "p"): []})
    return h


@legal
def late_ack_of_what_is_done_is_a_no_op() -> HistoryBuilder:
    """A `completed` at or below the cursor may be answered as done, with or without the key `noop`."""
    h = HistoryBuilder()
    h.push("p", "m1")
    old = h.pop("G", "p", ["m1"])
    h.advance(2001)
    new = h.pop("G", "p", ["m1"], worker=1)
    h.ack("G", ["m1"], lease=new, worker=1)
    h.ack("G", ["m1"], lease=old)
    h.audit()
    h.drain({("G", "p"): []})
    return h


@legal
def the_same_final_ack_repeated() -> HistoryBuilder:
    """An ack repeated after it released the lease may answer as the first time."""
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    h.ack("G", ["m1"], lease=lease, statuses="retry")
    h.ack("G", ["m1"], lease=lease, statuses="retry")
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def ack_just_before_the_lease_ends() -> HistoryBuilder:
    """At the very end of a lease the ack may still be in time."""
    h = HistoryBuilder()
    h.push("p", "m1")
    opened = h.begin_pop("G", "p", lease_s=2)
    h.advance(100)
    opened.messages(["m1"], lease="L1")
    h.advance(1950)
    h.ack("G", ["m1"], lease="L1")
    h.audit()
    h.drain({("G", "p"): []})
    return h


@legal
def lease_may_end_with_a_kill() -> HistoryBuilder:
    """Leases may survive a kill of the broker, or not: here another worker is served at once."""
    h = HistoryBuilder()
    h.push("p", "m1")
    h.pop("G", "p", ["m1"])
    h.kill()
    h.pop("G", "p", ["m1"], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def lease_may_survive_a_kill() -> HistoryBuilder:
    """Leases may survive a kill of the broker: an empty pop proves nothing until the lease is over."""
    h = HistoryBuilder()
    h.push("p", "m1")
    h.pop("G", "p", ["m1"])
    h.kill()
    h.pop("G", "p", [], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def extended_lease_holds_longer() -> HistoryBuilder:
    """After an extension the old end of the lease means nothing."""
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    h.extend("G", lease, 5)
    h.advance(3000)
    h.pop("G", "p", [], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def unanswered_extension_may_hold() -> HistoryBuilder:
    """An extension without an answer: the lease may live on."""
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    h.begin("G/0", ExtendCall("q", "G", lease, 5)).lost()
    h.advance(3000)
    h.pop("G", "p", [], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def unanswered_extension_may_not_hold() -> HistoryBuilder:
    """An extension without an answer: the lease may end at its time."""
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    h.begin("G/0", ExtendCall("q", "G", lease, 5)).lost()
    h.advance(3000)
    h.pop("G", "p", ["m1"], worker=2)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def overlapping_pushes_in_either_order() -> HistoryBuilder:
    """Pushes that overlap in time have no order."""
    h = HistoryBuilder()
    first = h.begin_push("p", "m1")
    second = h.begin_push("p", "m2")
    first.ok(h.push_result(["m1"]), 201)
    second.ok(h.push_result(["m2"]), 201)
    h.place("p", "m2", "m1")
    h.audit()
    h.drain({("G", "p"): ["m2", "m1"]})
    return h


@legal
def duplicate_answers_the_original() -> HistoryBuilder:
    """A duplicate stores nothing; its answer names the original."""
    h = HistoryBuilder()
    h.push("p", "m1", transaction_ids=["a"])
    opened = h.begin_push("p", "m1 again", transaction_ids=["a"])
    result = h.push_result(["m1"], ["duplicate"])
    opened.ok(result, 201)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def repeated_unanswered_push_is_stored_twice() -> HistoryBuilder:
    """Without a transactionId a repeated request may be stored twice."""
    h = HistoryBuilder()
    h.push("p", "m1", payloads=["null"])
    h.begin_push("p", "m2", payloads=["null"]).lost()
    h.place("p", "m2")
    h.audit()
    h.drain({("G", "p"): ["m1", "m2"]})
    return h


@legal
def payload_as_another_text_of_the_same_value() -> HistoryBuilder:
    """Numbers are compared as exact decimals, the order of keys is ignored."""
    h = HistoryBuilder()
    h.push("p", "m1", payloads=['{"a": 1.0, "b": "\\u00e9"}'])
    h.pop("G", "p", ["m1"], payloads=['{"b":"é","a":1}'])
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def drain_that_could_not_be_completed_proves_no_loss() -> HistoryBuilder:
    """Where the drain was stopped, what did not come may still be there."""
    h = HistoryBuilder()
    h.push("p", "m1")
    h.phase("drain")
    h.phase_end("drain", complete=False, why="the broker did not answer")
    return h


@legal
def spooled_push_comes_late_and_out_of_order() -> HistoryBuilder:
    """A `buffered` message is stored when the storage is back; its order among later pushes is not promised."""
    h = HistoryBuilder(profile="1.x")
    h.push("p", "m1", statuses=["buffered"])
    h.push("p", "m2")
    h.place("p", "m1")
    h.audit()
    h.drain({("G", "p"): ["m2", "m1"]})
    return h


@legal
def two_pops_at_once_of_which_one_is_empty() -> HistoryBuilder:
    """Of two pops at the same moment one is served."""
    h = HistoryBuilder()
    h.push("p", "m1")
    first = h.begin_pop("G", "p")
    second = h.begin_pop("G", "p", worker=1)
    second.messages(["m1"], lease="L1")
    first.messages([])
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def pops_that_overlap_an_ack_may_be_served_one_after_the_other() -> HistoryBuilder:
    """While an ack is under way the lease may be over: a pop that overlaps it may get the next batch."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1"])
    ack = h.begin_ack("G", ["m1"], lease=lease)
    second = h.pop("G", "p", ["m2"], worker=1)
    ack.lost()
    h.ack("G", ["m2"], lease=second, worker=1)
    h.audit()
    h.drain({("G", "p"): []})
    return h


@legal
def empty_pop_right_after_an_expiry_on_a_slow_broker() -> HistoryBuilder:
    """Within the profile's time after an expiry an empty wildcard answer proves nothing."""
    h = HistoryBuilder(profile="1.x")
    h.push("p", "m1")
    h.pop("G", "p", ["m1"], lease_s=1)
    h.advance(1300)
    h.pop("G", None, [], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def unleased_retry_without_a_leased_batch_stops_nothing() -> HistoryBuilder:
    """With no leased batch an unfenced `retry` may change nothing, and the completed message above it counts."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1", "m2"])
    h.ack("G", ["m1", "m2"], lease=lease, statuses="retry")
    h.ack("G", ["m1", "m2"], lease=None, statuses=["retry", "completed"])
    h.audit()
    h.drain({("G", "p"): []})
    return h


@legal
def one_id_in_two_unanswered_pushes() -> HistoryBuilder:
    """Either of two unanswered pushes of one transactionId may be the stored one; here the second."""
    h = HistoryBuilder()
    h.begin_push("p", "first", transaction_ids=["a"], payloads=["1"]).lost()
    h.begin_push("p", "second", transaction_ids=["a"], payloads=["2"]).lost()
    h.push("p", "m3")
    h.place("p", "second")
    h.audit()
    h.drain({("G", "p"): ["m3", "second"]})
    return h


@legal
def repeated_failed_ack_spends_one_retry() -> HistoryBuilder:
    """The same `failed` under the same, released lease may answer as the first time and is no second failure."""
    h = HistoryBuilder()
    h.configure(retryLimit=1)
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    h.ack("G", ["m1"], lease=lease, statuses="failed")
    h.ack("G", ["m1"], lease=lease, statuses="failed")
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def item_left_open_by_the_answer_acts_late() -> HistoryBuilder:
    """A push status that names the storage leaves open whether and when the item is stored."""
    h = HistoryBuilder()
    opened = h.begin_push("p", "m1")
    opened.ok(PushResult((None,), (None,), ("failed",), (None,), frozenset({0})), 201)
    h.push("p", "m2")
    h.place("p", "m1")
    h.audit()
    h.drain({("G", "p"): ["m2", "m1"]})
    return h


@legal
def overlapping_pops_of_which_the_later_answer_acted_first() -> HistoryBuilder:
    """The pop that is answered last took the batch first: the other one is rightly the second attempt."""
    h = HistoryBuilder()
    h.push("p", "m1")
    slow = h.begin_pop("G", "p")
    h.advance(2100)
    h.attempt = 2
    h.pop("G", "p", ["m1"], worker=1)
    h.attempt = 1
    slow.messages(["m1"], lease="slow")
    h.attempt = None
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def one_call_with_items_under_two_leases() -> HistoryBuilder:
    """Items under different leases are separate acks in any order: the one under the dead lease may be a no-op."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    old = h.pop("G", "p", ["m1"], lease_s=1)
    h.advance(1001)
    new = h.pop("G", "p", ["m1", "m2"])
    opened = h.begin_ack("G", ["m1", "m2"], lease=new)
    mixed = msgspec.structs.replace(opened.request, lease_ids=(old, new))
    h.events[-1] = msgspec.structs.replace(h.events[-1], request=mixed)
    opened.ok(AckResult((True, True), (None, None), (None, None), (None, None), (None, None)))
    h.audit()
    h.drain({("G", "p"): []})
    return h


@legal
def overlapping_auto_ack_pops_answered_in_the_other_order() -> HistoryBuilder:
    """Of two autoAck pops at once the one that is answered last acted first; the cursor does not go back with it."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2", "m3")
    slow = h.begin_pop("G", "p", batch=1, auto_ack=True)
    h.pop("G", "p", ["m2"], batch=1, auto_ack=True, worker=1)
    h.pop("G", "p", ["m3"], worker=1)
    slow.messages(["m1"])
    h.audit()
    h.drain({("G", "p"): ["m3"]})
    return h


@legal
def one_message_twice_in_a_call() -> HistoryBuilder:
    """At one offset `dlq` beats `retry`, and both items may carry the flag."""
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    h.ack("G", ["m1", "m1"], lease=lease, statuses=["dlq", "retry"], dead_lettered=True)
    h.audit()
    h.drain({("G", "p"): []})
    return h


@legal
def refused_push_whose_repetition_is_stored() -> HistoryBuilder:
    """The storage refused the first copy of a request; the second, unseen one was stored behind a later push."""
    h = HistoryBuilder()
    first = h.begin_push("p", "m1", transaction_ids=["a"], payloads=["1"])
    first.ok(PushResult((None,), ("a",), ("failed",), (None,), frozenset({0})), 201)
    again = h.begin_push("p", "m1 again", transaction_ids=["a"], payloads=["1"])
    h.push("p", "m2")
    again.lost()
    h.place("p", "m1 again")
    h.audit()
    h.drain({("G", "p"): ["m2", "m1 again"]})
    return h


@legal
def dead_letter_and_retry_of_one_message_stop_nothing() -> HistoryBuilder:
    """At one offset `dlq` beats `retry`: the call does not stop there and completes what is above."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2", "m3")
    lease = h.pop("G", "p", ["m1", "m2"])
    statuses = ["dlq", "retry", "completed"]
    h.ack("G", ["m1", "m1", "m2"], lease=lease, statuses=statuses, dead_lettered=[True, False, False])
    h.pop("G", "p", ["m3"])
    h.audit()
    h.drain({("G", "p"): ["m3"]})
    return h


@legal
def parked_named_pop_that_finds_its_partition_late() -> HistoryBuilder:
    """A named pop of a `new` group may decide only when it finds the partition, so what made it exist may be out."""
    h = HistoryBuilder(profile="1.x")
    parked = h.begin_pop("G", "p", mode="new", wait_ms=5000)
    h.advance(2000)
    h.push("p", "m1", "m2")
    parked.messages(["m2"], lease="L1")
    h.audit()
    h.drain({("G", "p"): ["m2"]})
    return h


@legal
def unleased_part_of_a_call_releases_the_lease_of_the_other_part() -> HistoryBuilder:
    """The parts of one call act in any order: the one without a lease hands the batch back, the other is refused."""
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    opened = h.begin_ack("G", ["m1", "m1"], lease=lease, statuses=["retry", "completed"])
    mixed = msgspec.structs.replace(opened.request, lease_ids=(None, lease))
    h.events[-1] = msgspec.structs.replace(h.events[-1], request=mixed)
    opened.ok(AckResult((True, False), (None, "invalid or expired lease"), (None, None), (None, None), (None, None)))
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def one_lease_id_for_two_groups() -> HistoryBuilder:
    """Where a broker gives two pops one lease id, an extension may renew either."""
    h = HistoryBuilder()
    h.push("p", "m1")
    h.pop("G", "p", ["m1"], lease="L")
    h.pop("H", "p", ["m1"], lease="L")
    h.extend("G", "L", 5)
    h.audit()
    h.drain({("G", "p"): ["m1"], ("H", "p"): ["m1"]})
    return h


# Seeks ------------------------------------------------------------------------------------------------------------


def completed_then(h: HistoryBuilder) -> HistoryBuilder:
    """G has read and completed m1 and m2."""
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1", "m2"])
    h.ack("G", ["m1", "m2"], lease=lease)
    return h


@legal
def everything_again_after_a_seek() -> HistoryBuilder:
    """A seek to the oldest message undoes what was completed."""
    h = completed_then(HistoryBuilder())
    h.seek("G")
    h.pop("G", "p", ["m1", "m2"])
    h.audit()
    h.drain({("G", "p"): ["m1", "m2"]})
    return h


@legal
def late_unleased_ack_that_acts_after_a_seek() -> HistoryBuilder:
    """An ack without a lease is not fenced: where its answer is lost, it may move the cursor again after the seek."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    h.pop("G", "p", ["m1", "m2"])
    h.begin_ack("G", ["m2"], lease=None).lost()
    h.seek("G")
    h.pop("G", "p", [])
    h.audit()
    h.drain({("G", "p"): []})
    return h


@legal
def late_unleased_ack_that_acts_before_a_seek() -> HistoryBuilder:
    """The same ack may have acted before the seek, or never."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    h.pop("G", "p", ["m1", "m2"])
    h.begin_ack("G", ["m2"], lease=None).lost()
    h.seek("G")
    lease = h.pop("G", "p", ["m1", "m2"])
    h.ack("G", ["m1", "m2"], lease=lease)
    h.audit()
    h.drain({("G", "p"): []})
    return h


@legal
def late_auto_ack_pop_that_acts_after_a_seek() -> HistoryBuilder:
    """An autoAck pop whose answer is lost may take its batch after the seek as well."""
    h = completed_then(HistoryBuilder())
    h.begin_pop("G", "p", batch=1, auto_ack=True).lost()
    h.seek("G")
    lease = h.pop("G", "p", ["m2"])
    h.ack("G", ["m2"], lease=lease)
    h.audit()
    h.drain({("G", "p"): []})
    return h


@legal
def a_seek_that_was_not_answered_and_did_not_act() -> HistoryBuilder:
    """A seek without an answer may not have moved anything."""
    h = completed_then(HistoryBuilder())
    h.begin_seek("G").lost()
    h.pop("G", "p", [])
    h.audit()
    h.drain({("G", "p"): []})
    return h


@legal
def a_seek_that_was_not_answered_and_acts_late() -> HistoryBuilder:
    """A seek without an answer may act at any time: between two pops that find nothing and the drain, say."""
    h = completed_then(HistoryBuilder())
    h.begin_seek("G").lost()
    h.pop("G", "p", [])
    h.push("p", "m3")
    lease = h.pop("G", "p", ["m3"])
    h.ack("G", ["m3"], lease=lease)
    h.audit()
    h.drain({("G", "p"): ["m1", "m2", "m3"]})
    return h


@legal
def a_pop_beside_a_seek_takes_the_old_place() -> HistoryBuilder:
    """A pop that overlaps a seek may have acted before it, and the seek then ends its lease."""
    h = completed_then(HistoryBuilder())
    h.push("p", "m3")
    seek = h.begin_seek("G")
    h.pop("G", "p", ["m3"])
    seek.ok(DoneResult())
    h.pop("G", "p", ["m1", "m2", "m3"], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m1", "m2", "m3"]})
    return h


@legal
def a_pop_beside_a_seek_takes_the_new_place() -> HistoryBuilder:
    """A pop that overlaps a seek may have acted after it, and then its lease lives."""
    h = completed_then(HistoryBuilder())
    seek = h.begin_seek("G")
    lease = h.pop("G", "p", ["m1", "m2"])
    seek.ok(DoneResult())
    h.pop("G", "p", [], worker=1)
    h.ack("G", ["m1", "m2"], lease=lease)
    h.audit()
    h.drain({("G", "p"): []})
    return h


@legal
def a_pop_that_acted_before_a_seek_is_answered_last() -> HistoryBuilder:
    """The other one acted behind the seek and was answered first."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1"], batch=1)
    h.ack("G", ["m1"], lease=lease)
    older = h.begin_pop("G", "p", worker=1)
    sought = h.begin_seek("G")
    h.pop("G", "p", ["m1", "m2"], worker=2)
    older.messages(["m2"], lease="older")
    sought.ok(DoneResult())
    h.audit()
    h.drain({("G", "p"): ["m1", "m2"]})
    return h


@legal
def a_pop_that_acted_before_a_seek_without_an_answer_is_answered_last() -> HistoryBuilder:
    """The same, and only the other pop tells that the seek acted."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1"], batch=1)
    h.ack("G", ["m1"], lease=lease)
    older = h.begin_pop("G", "p", worker=1)
    sought = h.begin_seek("G")
    sought.lost()
    sought.effect_end()
    h.pop("G", "p", ["m1", "m2"], worker=2)
    older.messages(["m2"], lease="older")
    h.audit()
    h.drain({("G", "p"): ["m1", "m2"]})
    return h


@legal
def an_empty_pop_beside_a_seek() -> HistoryBuilder:
    """A pop that overlaps a seek may have acted before it and found nothing."""
    h = completed_then(HistoryBuilder())
    seek = h.begin_seek("G")
    h.pop("G", "p", [])
    seek.ok(DoneResult())
    h.audit()
    h.drain({("G", "p"): ["m1", "m2"]})
    return h


@legal
def an_ack_beside_a_seek_that_acted_first() -> HistoryBuilder:
    """An ack that overlaps a seek is undone where it acted before it."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1", "m2"])
    seek = h.begin_seek("G")
    h.ack("G", ["m1", "m2"], lease=lease)
    seek.ok(DoneResult())
    h.pop("G", "p", ["m1", "m2"])
    h.audit()
    h.drain({("G", "p"): ["m1", "m2"]})
    return h


@legal
def a_push_beside_a_seek_to_the_end_is_out() -> HistoryBuilder:
    """A push that overlaps a seek to the end may have been stored before it."""
    h = completed_then(HistoryBuilder())
    seek = h.begin_seek("G", to_end=True)
    h.push("p", "m3")
    seek.ok(DoneResult())
    h.pop("G", "p", [])
    h.audit()
    h.drain({("G", "p"): []})
    return h


@legal
def a_push_beside_a_seek_to_the_end_is_in() -> HistoryBuilder:
    """A push that overlaps a seek to the end may have been stored after it."""
    h = completed_then(HistoryBuilder())
    seek = h.begin_seek("G", to_end=True)
    h.push("p", "m3")
    seek.ok(DoneResult())
    h.pop("G", "p", ["m3"])
    h.audit()
    h.drain({("G", "p"): ["m3"]})
    return h


@legal
def a_seek_to_the_end_skips_what_was_never_given() -> HistoryBuilder:
    """A seek to the end passes what the group has not completed, and what it was handed."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    h.pop("G", "p", ["m1"], batch=1)
    h.seek("G", "p", to_end=True)
    h.push("p", "m3")
    h.pop("G", "p", ["m3"], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m3"]})
    return h


@legal
def a_seek_of_a_group_that_never_popped_is_its_start() -> HistoryBuilder:
    """The contract does not say that the first pop decides anew: the seek may have been the start."""
    h = HistoryBuilder()
    h.push("p", "m1")
    h.seek("G")
    h.pop("G", "p", ["m1"], mode="new")
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def a_seek_of_a_group_that_never_popped_is_forgotten() -> HistoryBuilder:
    """Nor that it does not: there may be no cursor that the seek could move."""
    h = HistoryBuilder()
    h.push("p", "m1")
    h.seek("G")
    h.pop("G", "p", [], mode="new")
    h.push("p", "m2")
    h.pop("G", "p", ["m2"], mode="new")
    h.audit()
    return h


@legal
def a_seek_to_the_end_of_a_group_that_never_popped_is_its_start() -> HistoryBuilder:
    """Then what is pushed before its first pop, and after the seek, comes also to a `new` group."""
    h = HistoryBuilder()
    h.push("p", "m1")
    h.seek("G", to_end=True)
    h.push("p", "m2")
    h.pop("G", "p", ["m2"], mode="new")
    h.audit()
    return h


@legal
def a_seek_of_one_partition_decides_the_start_in_another() -> HistoryBuilder:
    """A group that never popped may be there from its seek on, and read other partitions from their first message."""
    h = HistoryBuilder()
    h.push("p", "m1")
    h.push("r", "m2")
    h.seek("G", "p", to_end=True)
    h.pop("G", "r", ["m2"], mode="new")
    h.audit()
    return h


@legal
def an_attempt_counter_starts_anew_or_goes_on_after_a_seek() -> HistoryBuilder:
    """A seek clears the retry state; whether deliveries are counted on is not said."""
    h = HistoryBuilder()
    h.attempt = 1
    h.push("p", "m1")
    h.pop("G", "p", ["m1"])
    h.seek("G")
    h.pop("G", "p", ["m1"])
    h.attempt = 3
    h.seek("G")
    h.pop("G", "p", ["m1"])
    return h


@legal
def a_failure_after_a_seek_is_the_first_again() -> HistoryBuilder:
    """A seek clears the count of failures, so the fourth one may come back."""
    h = HistoryBuilder()
    h.push("p", "m1")
    for number in range(5):
        lease = h.pop("G", "p", ["m1"])
        h.ack("G", ["m1"], lease=lease, statuses="failed")
        if number == 2:
            h.seek("G")
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def a_lease_id_used_again_after_a_late_seek() -> HistoryBuilder:
    """That an answer called a lease released says nothing about a later lease that has the same id."""
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    h.begin_seek("G").lost()
    h.ack("G", ["m1"], lease=lease, released=True)
    h.pop("G", "p", ["m1"], lease=lease)
    h.pop("G", "p", [])
    h.audit()
    return h


@legal
def a_seek_to_a_time_in_between() -> HistoryBuilder:
    """Where in the log a time lies is not known here, so the group may go on anywhere, and twice."""
    h = completed_then(HistoryBuilder())
    request = SeekCall("q", "G", "p", timestamp="2026-01-01T00:00:00Z")
    h.begin("admin", request).ok(DoneResult())
    h.pop("G", "p", ["m2"], lease_s=1)
    h.advance(1001)
    h.pop("G", "p", ["m2"])
    h.audit()
    h.drain({("G", "p"): ["m2"]})
    return h


@legal
def a_group_reads_on_after_a_seek() -> HistoryBuilder:
    """Only the first run after a seek starts where it put the group; another group's seek to a time moves nothing."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    h.pop("G", "p", ["m1", "m2"])
    h.pop("H", "p", ["m1"], batch=1)
    h.seek("G")
    h.seek("H", "p", to_end=True)
    lease = h.pop("G", "p", ["m1"], batch=1)
    h.ack("G", ["m1"], lease=lease)
    h.pop("G", "p", ["m2"], batch=1)
    h.audit()
    return h


def test_a_broker_without_a_seek_is_not_judged_by_its_rules() -> None:
    history = completed_then(HistoryBuilder()).history()
    header = msgspec.structs.replace(history.header, capabilities={"seek": False})
    judgement = judge(msgspec.structs.replace(history, header=header))
    verdicts = {v.rule: (v.verdict, v.reason) for v in judgement.rules if v.rule.startswith("cursor/")}
    assert set(verdicts.values()) == {(Verdict.SKIP, "the broker has no seek")}


@legal
def empty_answers_while_the_storage_is_away() -> HistoryBuilder:
    """A broker without its storage may answer "nothing there" without looking."""
    h = HistoryBuilder(profile="1.x")
    h.push("p", "m1")
    h.fault("storage-stop")
    h.advance(500)
    h.pop("G", "p", [])
    h.pop("G", None, [])
    h.advance(3000)
    h.fault("storage-start")
    h.advance(1000)
    h.pop("G", None, [])
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def parked_pop_that_lives_through_an_outage() -> HistoryBuilder:
    """It may have lost what would have woken it."""
    h = HistoryBuilder(profile="2.x")
    h.push("p", "m1")
    parked = h.begin_pop("G", None, wait_ms=30_000)
    h.outage(1000)
    h.push("p", "m2")
    h.advance(29_000)
    parked.messages([])
    h.audit()
    h.drain({("G", "p"): ["m1", "m2"]})
    return h


@legal
def first_pop_without_the_storage_decides_nothing() -> HistoryBuilder:
    """A `new` group starts at its first pop that reached the storage: what was pushed before that one is out."""
    h = HistoryBuilder(profile="1.x")
    h.push("p", "m1")
    h.fault("storage-stop")
    h.pop("G", None, [], mode="new")
    h.fault("storage-start")
    h.advance(5000)
    h.push("p", "m2")
    h.pop("G", None, [], mode="new")
    h.advance(5000)
    h.push("p", "m3")
    h.pop("G", None, ["m3"], mode="new")
    h.audit()
    h.drain({("G", "p"): ["m3"]})
    return h


@legal
def first_pop_without_the_storage_decides_after_all() -> HistoryBuilder:
    """Nobody knows whether it reached the storage."""
    h = HistoryBuilder(profile="1.x")
    h.push("p", "m1")
    h.fault("storage-stop")
    h.pop("G", None, [], mode="new")
    h.fault("storage-start")
    h.advance(5000)
    h.push("p", "m2")
    h.pop("G", None, ["m2"], mode="new")
    h.audit()
    h.drain({("G", "p"): ["m2"]})
    return h


@legal
def ack_denied_while_the_storage_is_away() -> HistoryBuilder:
    """Whatever the answer says: the commit may have been lost with the storage, or not."""
    h = HistoryBuilder(profile="2.x")
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1", "m2"], lease_s=60)
    h.fault("storage-stop")
    h.ack("G", ["m1"], lease=lease, success=False)
    h.ack("G", ["m2"], lease=lease, success=False)
    h.fault("storage-start")
    h.audit()
    h.drain({("G", "p"): ["m2"]})
    return h


@legal
def extension_denied_while_the_storage_is_away() -> HistoryBuilder:
    """The lease may have been extended all the same: its partition may stay taken."""
    h = HistoryBuilder(profile="2.x")
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"], lease_s=2)
    h.fault("storage-stop")
    h.extend("G", lease, 30, success=False)
    h.advance(1000)
    h.fault("storage-start")
    h.advance(10_000)
    h.pop("G", "p", [], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def lease_that_does_not_survive_an_outage() -> HistoryBuilder:
    """Leases may survive the end of what keeps them, or not."""
    h = HistoryBuilder(profile="2.x")
    h.push("p", "m1")
    h.pop("G", "p", ["m1"], lease_s=60)
    h.outage(1000)
    h.pop("G", "p", ["m1"], lease_s=60, worker=1)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def spooled_message_gets_another_id() -> HistoryBuilder:
    """What was answered `buffered` is stored once, later, and known by its transactionId."""
    h = HistoryBuilder(profile="1.x")
    h.push("p", "m1")
    h.fault("storage-stop")
    h.push("p", "m2", statuses=["buffered"])
    h.push("p", "m3", statuses=["buffered"], transaction_ids=["t3"])
    h.fault("storage-start")
    h.push("p", "m4")
    second, third = h.unspool("m2 stored", "m2"), h.unspool("m3 stored", "m3")
    h.advance(11_000)
    lease = h.pop("G", "p", ["m1", "m4", second, third])
    h.ack("G", [second], lease=lease)
    h.audit()
    h.drain({("G", "p"): [third]})
    return h


@legal
def spooled_message_that_is_not_stored_yet() -> HistoryBuilder:
    """The spool takes its time once the storage is back, and begins anew when the broker is disturbed again."""
    h = HistoryBuilder(profile="2.x")
    h.fault("storage-stop")
    h.push("p", "m1", statuses=["buffered"])
    h.fault("storage-start")
    h.advance(9000)
    h.kill()
    h.advance(9000)
    h.note("stalled 300")
    h.advance(9000)
    h.fault("pause")
    h.advance(60_000)
    h.fault("resume")
    h.advance(9000)
    h.phase("drain")
    h.pop("G", "p", [])
    h.phase_end("drain")
    return h


@legal
def spooled_message_of_a_storage_that_never_comes_back() -> HistoryBuilder:
    """It is stored when the storage is back."""
    h = HistoryBuilder(profile="2.x")
    h.fault("storage-stop")
    h.push("p", "m1", statuses=["buffered"])
    h.drain({("G", "p"): []})
    return h


@legal
def spooled_message_that_turns_out_to_be_a_duplicate() -> HistoryBuilder:
    """It was spooled before anybody could know."""
    h = HistoryBuilder(profile="2.x")
    h.push("p", "m1", transaction_ids=["t"])
    h.fault("storage-stop")
    h.push("p", "m2", transaction_ids=["t"], statuses=["buffered"])
    h.fault("storage-start")
    h.advance(20_000)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def outage_in_the_middle_of_a_drain() -> HistoryBuilder:
    """What the drain then did not bring may still be there."""
    h = HistoryBuilder(profile="2.x")
    h.push("p", "m1")
    h.phase("drain")
    h.fault("storage-stop")
    h.pop("G", "p", [])
    h.fault("storage-start")
    h.phase_end("drain")
    return h


@legal
def pop_without_an_answer_that_acts_after_an_outage() -> HistoryBuilder:
    """A pop that was sent to a broker without its storage may wait for it, and take a lease when it is back."""
    h = HistoryBuilder(profile="2.x")
    h.push("p", "m1")
    h.fault("storage-stop")
    h.advance(1000)
    h.begin_pop("G", "p", lease_s=10).lost()
    h.advance(20_000)
    h.fault("storage-start")
    h.advance(5000)
    h.pop("G", "p", [], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def push_that_failed_with_the_storage_and_is_delivered() -> HistoryBuilder:
    """The commit may have been the last thing that the storage did."""
    h = HistoryBuilder(profile="2.x")
    opened = h.begin_push("p", "m1")
    h.fault("storage-stop")
    opened.ok(h.push_result(["m1"], ["failed"]))
    h.fault("storage-start")
    h.stored["m1 after all"] = h.stored["m1"]
    h.place("p", "m1 after all")
    h.advance(5000)
    h.audit()
    h.drain({("G", "p"): ["m1 after all"]})
    return h


@legal
def unfenced_ack_left_open_by_its_answer_releases_a_later_lease() -> HistoryBuilder:
    """The commit of which the broker lost sight comes through when the message is leased again."""
    h = HistoryBuilder()
    h.push("p", "m1", "m2")
    h.pop("G", "p", ["m1"], batch=1, lease_s=1)
    unknown = AckResult((False,), ("pool timed out",), (None,), (None,), (None,), frozenset({0}))
    h.begin_ack("G", ["m1"], lease=None).ok(unknown)
    h.advance(1001)
    h.pop("G", "p", ["m1"], batch=1, lease_s=60)
    h.pop("G", "p", ["m2"], batch=1, lease_s=60)
    h.audit()
    return h


@legal
def unfenced_ack_denied_without_the_storage_releases_a_later_lease() -> HistoryBuilder:
    """What a broker denies without its storage may come through as well."""
    h = HistoryBuilder(profile="1.x")
    h.push("p", "m1", "m2")
    h.pop("G", "p", ["m1"], batch=1, lease_s=1)
    h.fault("storage-stop")
    h.ack("G", ["m1"], lease=None, success=False)
    h.fault("storage-start")
    h.advance(1001)
    h.pop("G", "p", ["m1"], batch=1, lease_s=60)
    h.pop("G", "p", ["m2"], batch=1, lease_s=60)
    h.audit()
    return h


@legal
def unfenced_completion_that_acts_between_two_failures() -> HistoryBuilder:
    """A batch that completes clears the count, also by an ack that was sent before the failures."""
    h = HistoryBuilder()
    h.configure(retryLimit=1)
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1"], batch=1)
    late = h.begin_ack("G", ["m1"], lease=None)
    late.lost()
    h.ack("G", ["m1"], lease=lease, statuses="failed")
    h.pop("G", "p", ["m1"], batch=1)
    late.effect_end()
    lease = h.pop("G", "p", ["m2"], batch=1)
    h.ack("G", ["m2"], lease=lease, statuses="failed")
    h.pop("G", "p", ["m2"], batch=1)
    h.audit()
    return h


@legal
def unfenced_failure_that_acts_behind_a_dead_letter() -> HistoryBuilder:
    """It is the first failure of a new count, though it was sent before the old one was spent."""
    h = HistoryBuilder()
    h.configure(retryLimit=1)
    h.push("p", "m1", "m2")
    lease = h.pop("G", "p", ["m1", "m2"])
    h.ack("G", ["m1"], lease=lease, statuses="failed")
    lease = h.pop("G", "p", ["m1", "m2"])
    late = h.begin_ack("G", ["m2"], lease=None, statuses="failed")
    late.lost()
    h.ack("G", ["m1"], lease=lease, statuses="failed", dead_lettered=True)
    h.pop("G", "p", ["m2"])
    late.effect_end()
    lease = h.pop("G", "p", ["m2"])
    h.ack("G", ["m2"], lease=lease, statuses="failed", dead_lettered=True)
    h.audit()
    return h


@legal
def auto_ack_pop_between_two_failures() -> HistoryBuilder:
    """It completes what it delivers, and may clear the count as every completed batch does."""
    h = HistoryBuilder()
    h.configure(retryLimit=1)
    h.push("p", "m1", "m2", "m3")
    lease = h.pop("G", "p", ["m1"], batch=1)
    h.ack("G", ["m1"], lease=lease, statuses="failed")
    h.pop("G", "p", ["m1"], batch=1, auto_ack=True)
    lease = h.pop("G", "p", ["m2"], batch=1)
    h.ack("G", ["m2"], lease=lease, statuses="failed")
    unseen = h.begin_pop("G", "p", batch=1, auto_ack=True)
    unseen.lost()
    unseen.effect_end()
    lease = h.pop("G", "p", ["m3"], batch=1)
    h.ack("G", ["m3"], lease=lease, statuses="failed")
    h.pop("G", "p", ["m3"], batch=1)
    h.audit()
    return h


@legal
def unanswered_push_that_was_spooled() -> HistoryBuilder:
    """The broker was done with it and had stored nothing yet: the answer that was lost said `buffered`."""
    h = HistoryBuilder(profile="2.x")
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"])
    h.ack("G", ["m1"], lease=lease)
    h.fault("storage-stop")
    spooled = h.begin_push("p", "m2", "m3")
    spooled.lost()
    spooled.effect_end()
    h.fault("storage-start")
    h.advance(4000)
    h.pop("G", "p", [])
    h.advance(4000)
    h.place("p", "m3", "m2")
    h.pop("G", "p", ["m3", "m2"])
    h.audit()
    return h


@legal
def extension_denied_while_the_storage_is_away_that_acts_late() -> HistoryBuilder:
    """It counts from when it comes through, as long as the lease lives."""
    h = HistoryBuilder(profile="2.x")
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"], lease_s=60)
    h.fault("storage-stop")
    h.extend("G", lease, 30, success=False)
    h.fault("storage-start")
    h.advance(70_000)
    h.pop("G", "p", [], worker=1)
    h.audit()
    h.drain({("G", "p"): ["m1"]})
    return h


@legal
def spooled_message_without_an_id_that_looks_like_another() -> HistoryBuilder:
    """Which of two pushes of one value was stored, the value does not tell."""
    h = HistoryBuilder(profile="2.x")
    h.fault("storage-stop")
    opened = h.begin_push("p", "m1", "m2", payloads=["1", "1"])
    opened.ok(PushResult((None, None), (None, None), ("failed", "buffered"), (None, None)))
    h.fault("storage-start")
    h.advance(5000)
    h.unspool("m3", "m2")
    h.advance(20_000)
    h.audit()
    h.drain({("G", "p"): ["m3"]})
    return h


@legal
def duplicate_of_what_is_still_in_the_spool() -> HistoryBuilder:
    """Its answer names the id of the spool; the message gets another one when it is stored."""
    h = HistoryBuilder(profile="2.x")
    h.fault("storage-stop")
    opened = h.begin_push("p", "m1", "m2", transaction_ids=["t", "t"])
    opened.ok(PushResult((None, "spool 1"), ("t", "t"), ("buffered", "duplicate"), (None, None)))
    opened = h.begin_push("p", "m3", transaction_ids=["t"])
    opened.ok(PushResult(("spool 1",), ("t",), ("duplicate",), (None,)))
    h.fault("storage-start")
    h.advance(5000)
    h.pop("G", "p", [])
    h.unspool("m4", "m1")
    h.advance(20_000)
    h.audit()
    h.drain({("G", "p"): ["m4"]})
    return h


@legal
def duplicate_of_what_came_out_of_the_spool() -> HistoryBuilder:
    """Once the storage is back, the answer names the id under which it was stored."""
    h = HistoryBuilder(profile="2.x")
    h.fault("storage-stop")
    h.push("p", "m1", transaction_ids=["t"], statuses=["buffered"])
    h.fault("storage-start")
    h.advance(5000)
    h.unspool("m3", "m1")
    opened = h.begin_push("p", "m2", transaction_ids=["t"])
    opened.ok(PushResult(("m3",), ("t",), ("duplicate",), (None,)))
    h.audit()
    h.drain({("G", "p"): ["m3"]})
    return h


@legal
def extension_at_the_very_end_of_a_lease() -> HistoryBuilder:
    """One partition was taken again in that moment, and the other one was renewed."""
    h = HistoryBuilder()
    h.push("p", "m1")
    h.push("r", "m2")
    h.begin_pop("G", None, partitions=2, lease_s=2).messages(["m1", "m2"], lease="L")
    h.advance(2000)
    h.pop("G", "r", ["m2"], worker=1, lease_s=60)
    h.begin("G/0", ExtendCall("q", "G", "L", 30)).ok(ExtendResult(True, 1))
    h.audit()
    h.drain({("G", "p"): ["m1"], ("G", "r"): ["m2"]})
    return h


@legal
def item_left_open_without_the_storage_is_stored_behind_the_next() -> HistoryBuilder:
    """It may have been spooled, and what was spooled has no place among the others."""
    h = HistoryBuilder(profile="2.x")
    opened = h.begin_push("p", "m1", "m2")
    h.fault("storage-stop")
    opened.ok(PushResult((None, "m2"), (None, "m2"), ("failed", "queued"), (None, None), frozenset({0})), 201)
    h.place("p", "m2")
    h.fault("storage-start")
    h.advance(5000)
    h.unspool("m3", "m1")
    h.audit()
    h.drain({("G", "p"): ["m2", "m3"]})
    return h


@legal
def one_value_in_two_unanswered_pushes_beside_a_start() -> HistoryBuilder:
    """Which of the two is out of the group, the value does not tell: it is the one that was delivered later here."""
    h = HistoryBuilder()
    h.push("p", "m0")
    first = h.begin_push("p", "m1", payloads=["1"])
    first.lost()
    first.effect_end()
    h.place("p", "m1")
    h.pop("G", "p", [], mode="new")
    h.begin_push("p", "m2", payloads=["1"]).lost()
    h.advance(1000)
    h.place("p", "m2")
    h.pop("G", "p", ["m2"], mode="new")
    h.audit()
    return h


@legal
def repeated_ack_answered_as_the_first_time_behind_a_seek() -> HistoryBuilder:
    """The first one completed the batch, and the seek that nobody was answered put the group back."""
    h = HistoryBuilder()
    h.push("p", "m1")
    lease = h.pop("G", "p", ["m1"], lease_s=60)
    first = h.begin_ack("G", ["m1"], lease=lease)
    first.lost()
    sought = h.begin_seek("G")
    sought.lost()
    sought.effect_end()
    h.ack("G", ["m1"], lease=lease)
    h.pop("G", "p", ["m1"], lease_s=60)
    h.audit()
    return h
