"""The verdict table, the failures and the closing line."""

from __future__ import annotations

import pytest

from contract.explore import Exploration, Failure
from contract.history import End, Header, History
from contract.reports import text
from contract.rules import RULES
from contract.verdicts import RuleVerdict, Verdict, Violation
from strategies.schedule import Ack, Group, Item, Pop, Push, Schedule

SCHEDULE = Schedule(
    steps=(Push((Item(), Item())), Pop(label=0, partition=0, batch=1), Ack(pop=0)), groups=(Group("G"), Group("H"))
)
PASSED = RuleVerdict("order/push-order", Verdict.PASS, 48_930)


def violation(**changes):
    values = {
        "rule": "group/independent-cursor",
        "queue": "q1",
        "partition": "p0",
        "group": "H",
        "expected": "H starts at m1 (H has acked nothing)",
        "observed": "H got m2; m1 never came; G acked m1 at step 3",
    }
    return Violation(**(values | changes))


def failed(**changes):
    header = Header(1, "0", "t", "simulated", {}, ("q1",))
    values = {
        "violation": violation(),
        "schedule": SCHEDULE,
        "original": Schedule(steps=SCHEDULE.steps * 4),
        "history": History(header, (End(0),)),
        "seen": 3,
        "tries": 3,
        "seconds_to_first": 0.31,
        "seconds_to_minimal": 0.52,
    }
    return Failure(**(values | changes))


def exploration(**changes):
    values = {
        "target": "reference broker (simulated)",
        "profile": "simulated",
        "seed": 4127,
        "schedules": 1840,
        "requests": 45_912,
        "seconds": 31.2,
        "rules": (PASSED,),
        "situations": {"duplicate push": 3, "dead letter": 1},
        "never_reached": ("kill with a lease",),
        "failures": (),
    }
    return Exploration(**(values | changes))


def rows(*rules, width=120):
    return text.table(rules, width=width).splitlines()


# Untrusted text


@pytest.mark.parametrize("hostile", ["\x1b[31mred", "a\rb", "a\nb", "\u202eabc", "\u2028", "\x9b2J", "\ud800", "\x00"])
def test_nothing_that_moves_the_cursor_gets_through(hostile):
    cleaned = text.clean(hostile)
    assert cleaned.isprintable()
    assert "\\" in cleaned


@pytest.mark.parametrize("plain", ["orders/é 漢字 🐝", "a b", "[/nope]", "'\"", ""])
def test_printable_text_stays_as_it_is(plain):
    assert text.clean(plain) == plain


def test_long_text_is_cut():
    assert text.clean("x" * 1000, longest=10) == "x" * 10 + "..."


def test_every_line_of_a_hostile_failure_is_harmless():
    hostile = "\x1b]0;pwned\x07\n FAIL \u202e"
    shown = failed(
        violation=violation(queue=hostile, partition=hostile, group=hostile, expected=hostile, observed=hostile),
        schedule=Schedule(steps=SCHEDULE.steps, groups=(Group(hostile),)),
        history_path=hostile,
        replay_path=hostile,
    )
    assert all(line.isprintable() for line in text.failure(shown).splitlines())


# The heading


def test_the_heading_says_what_was_run():
    first, second = text.heading(exploration()).splitlines()
    assert first.startswith("broker-contract ")
    assert first.endswith("target: reference broker (simulated)  profile simulated  seed 4127")
    assert second == " 1,840 schedules  45,912 requests  31 s  situations 2/3"


def test_what_was_never_reached_is_listed():
    reached = exploration(never_reached=("kill with a lease", "dead letter"))
    assert text.never_reached(reached) == " never reached: kill with a lease; dead letter"


def test_nothing_to_list_is_no_line():
    assert text.never_reached(exploration(never_reached=())) == ""


# The table


def test_one_line_a_family():
    lines = rows(PASSED, RuleVerdict("order/no-gap-in-batch", Verdict.PASS, 70), RuleVerdict("ack/x", Verdict.PASS, 1))
    assert [line.split() for line in lines] == [
        ["family", "rules", "verdict", "evidence", "(compared)"],
        ["order", "2", "PASS", "49,000"],
        ["ack", "1", "PASS", "1"],
    ]


def test_a_fail_is_counted():
    assert rows(RuleVerdict("order/push-order", Verdict.FAIL, 7))[1].split() == ["order", "1", "FAIL", "1", "7"]


def test_a_family_of_several_verdicts_says_each():
    lines = rows(PASSED, RuleVerdict("order/b", Verdict.NOT_EXERCISED), RuleVerdict("order/c", Verdict.FAIL, 1))
    assert "FAIL 1, PASS 1, NOT EXERCISED 1" in lines[1]


def test_rules_without_evidence_are_named():
    assert rows(PASSED, RuleVerdict("order/b", Verdict.NOT_EXERCISED))[-1] == " not exercised: order/b"


def test_a_skipped_family_says_why_in_its_line():
    lines = rows(*(RuleVerdict(f"durability/{name}", Verdict.SKIP, reason="cannot kill") for name in "ab"))
    assert lines[1].split() == ["durability", "2", "SKIP", "(cannot", "kill)"]
    assert len(lines) == 2


def test_a_skip_inside_a_family_says_why_below():
    lines = rows(PASSED, RuleVerdict("order/b", Verdict.SKIP, reason="no audit"))
    assert lines[-1] == " skipped: order/b: no audit"


def test_skips_of_one_reason_share_a_line():
    skips = [RuleVerdict(name, Verdict.SKIP, reason="no audit") for name in ("order/b", "ack/c")]
    lines = rows(PASSED, *skips, RuleVerdict("ack/d", Verdict.PASS, 1))
    assert lines[-1] == " skipped: order/b, ack/c: no audit"


def test_a_crashed_check_is_named_with_its_place():
    lines = rows(RuleVerdict("order/b", Verdict.ERROR, reason="KeyError: 'x' (order.py:12)"))
    assert lines[-1] == " error: order/b: KeyError: 'x' (order.py:12)"


def test_known_deviations_are_not_hidden():
    known = violation(rule="ack/b", signature="multi-dlq")
    lines = rows(RuleVerdict("ack/b", Verdict.PASS, 9, known=(known, known)))
    assert lines[-1] == " known deviation: ack/b (multi-dlq), seen 2 times"


def test_no_line_is_longer_than_the_width():
    many = [RuleVerdict(f"order/a-rule-{number}", Verdict.NOT_EXERCISED) for number in range(40)]
    assert all(len(line) <= 80 for line in rows(*many, width=80))


def test_an_empty_table_is_its_head():
    assert len(rows()) == 1


# A failure


def test_a_failure_says_everything_that_is_needed():
    lines = text.failure(failed(replay_path="failures/x-7c1e.json")).splitlines()
    rule = RULES["group/independent-cursor"]
    assert lines == [
        f"FAIL group/independent-cursor   {rule.level}   contract {rule.clause}   seen 3 of 3",
        " where     queue q1  partition p0  group H",
        " expected  H starts at m1 (H has acked nothing)",
        " observed  H got m2; m1 never came; G acked m1 at step 3",
        " schedule  1 push p0 m1,m2 | 2 pop G p0 batch 1 | 3 ack G pop 0 message 1 | then drain H",
        " found     after 0.3 s as 12 steps, reduced to 3 steps after 0.5 s",
        " replay    broker-contract replay failures/x-7c1e.json",
    ]


def test_a_signature_is_shown():
    assert "(late)" in text.failure(failed(violation=violation(signature="late"))).splitlines()[0]


def test_a_violation_that_follows_says_so():
    assert "follows an earlier violation" in text.failure(failed(violation=violation(following=True)))


def test_other_rules_that_the_schedule_breaks_are_named():
    assert " also      ack/x, order/y" in text.failure(failed(also=("ack/x", "order/y"))).splitlines()


def test_the_group_without_a_name_is_named_where_groups_matter():
    assert "group (no group)" in text.failure(failed(violation=violation(group="")))


def test_a_rule_of_pushes_names_no_group():
    shown = text.failure(failed(violation=violation(rule="push/no-phantom", group="")))
    assert shown.splitlines()[1] == " where     queue q1  partition p0"


def test_a_violation_of_a_whole_history():
    nowhere = violation(rule="push/no-phantom", queue="", partition="", group="")
    assert text.failure(failed(violation=nowhere)).splitlines()[1] == " where     the whole history"


def test_the_history_says_which_calls_show_it():
    lines = text.failure(failed(violation=violation(calls=(3, 7)), history_path="h/12.jsonl")).splitlines()
    assert lines[-1] == " history   h/12.jsonl  calls 3, 7"


def test_the_replay_command_can_be_copied():
    shown = text.failure(failed(replay_path="my failures/x.json"), replay_options="--broker-url http://h", width=60)
    assert shown.splitlines()[-1] == " replay    broker-contract replay 'my failures/x.json' --broker-url http://h"


def test_an_unknown_rule_is_shown_all_the_same():
    assert text.failure(failed(violation=violation(rule="new/rule"))).startswith("FAIL new/rule   seen 3 of 3")


def test_a_long_schedule_is_wrapped_under_its_label():
    long = failed(schedule=Schedule(steps=SCHEDULE.steps * 20))
    lines = text.failure(long, width=100).splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert lines[5].startswith(" " * 11)


# The end


def test_the_closing_line_counts_and_says_the_exit_code():
    rules = [
        RuleVerdict("a/a", Verdict.FAIL),
        RuleVerdict("a/b", Verdict.PASS, 1),
        RuleVerdict("a/c", Verdict.PASS, 1),
        RuleVerdict("a/d", Verdict.SKIP),
        RuleVerdict("a/e", Verdict.NOT_EXERCISED),
        RuleVerdict("a/f", Verdict.ERROR),
    ]
    assert text.closing(rules) == "1 violated, 2 held, 1 in error, 1 skipped, 1 not exercised   exit 1"


def test_the_closing_line_leaves_out_what_there_is_none_of():
    assert text.closing([PASSED]) == "0 violated, 1 held   exit 0"


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([Verdict.PASS], 0),
        ([Verdict.PASS, Verdict.SKIP, Verdict.NOT_EXERCISED], 0),
        ([Verdict.PASS, Verdict.FAIL], 1),
        ([Verdict.ERROR, Verdict.FAIL], 1),
        ([Verdict.PASS, Verdict.ERROR], 2),
        ([Verdict.NOT_EXERCISED], 2),
        ([Verdict.SKIP, Verdict.NOT_EXERCISED], 2),
        ([], 2),
    ],
)
def test_exit_codes(verdicts, code):
    assert text.exit_code_of(RuleVerdict(f"a/{at}", verdict) for at, verdict in enumerate(verdicts)) == code
