"""The file of one failure: what is written is read again, and what cannot be read is said in one sentence."""

from __future__ import annotations

import json

import pytest

from contract import replay_file
from contract.errors import CouldNotJudge
from contract.replay_file import Replay
from strategies.schedule import Ack, Item, Pop, Push, Schedule

SCHEDULE = Schedule(steps=(Push((Item(), Item(1))), Pop(label=0, batch=1), Ack(pop=0)), partitions=2)


def replay(**changes):
    values = {
        "replay": 1,
        "suite": "0.1.0",
        "rule": "group/independent-cursor",
        "signature": "",
        "target": "reference broker (simulated)",
        "seed": 4127,
        "expected": "H starts at m1",
        "observed": "H got m2",
        "schedule": SCHEDULE,
    }
    return Replay(**(values | changes))


def broken(tmp_path, text):
    path = tmp_path / "broken.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CouldNotJudge) as caught:
        replay_file.read(path)
    sentence = str(caught.value)
    assert str(path) in sentence
    assert "\n" not in sentence
    return sentence


def test_what_is_written_is_read_again(tmp_path):
    path = replay_file.write(replay(), tmp_path)
    assert replay_file.read(path) == replay()


def test_the_name_says_the_rule_and_four_digits_of_the_schedule(tmp_path):
    path = replay_file.write(replay(), tmp_path)
    stem, digits = path.stem.rsplit("-", 1)
    assert stem == "group-independent-cursor"
    assert len(digits) == 4
    assert int(digits, 16) >= 0


def test_the_same_failure_writes_the_same_file(tmp_path):
    assert replay_file.write(replay(), tmp_path) == replay_file.write(replay(seed=1), tmp_path)


def test_another_schedule_is_another_file(tmp_path):
    other = Schedule(steps=SCHEDULE.steps[:1])
    assert replay_file.write(replay(), tmp_path) != replay_file.write(replay(schedule=other), tmp_path)


def test_the_folder_is_made(tmp_path):
    assert replay_file.write(replay(), tmp_path / "deep" / "failures").exists()


def test_a_person_can_read_it(tmp_path):
    lines = replay_file.write(replay(), tmp_path).read_text().splitlines()
    assert len(lines) > 10
    assert '  "rule": "group/independent-cursor",' in lines


def test_hostile_text_in_a_replay_survives(tmp_path):
    hostile = replay(observed='m1 "\x1b[31m]\u202e\n', target="q/\x00")
    assert replay_file.read(replay_file.write(hostile, tmp_path)) == hostile


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CouldNotJudge, match="--failures-dir"):
        replay_file.write(replay(), tmp_path / "file")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CouldNotJudge, match=r"missing\.json"):
        replay_file.read(tmp_path / "missing.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"text"', b"\xff\xfe", b"\x00", '{"replay": 1}', "1e400"])
def test_what_is_no_replay_is_broken(tmp_path, text):
    assert "broken" in broken(tmp_path, text)


def test_a_file_that_was_cut_is_broken(tmp_path):
    whole = replay_file.write(replay(), tmp_path).read_bytes()
    assert "broken" in broken(tmp_path, whole[: len(whole) // 2])


def test_the_place_of_a_wrong_value_is_named(tmp_path):
    content = json.loads(replay_file.write(replay(), tmp_path).read_text())
    content["schedule"]["steps"][1]["batch"] = 0
    assert "$.schedule.steps[1].batch" in broken(tmp_path, json.dumps(content))


def test_an_unknown_step_is_broken(tmp_path):
    content = json.loads(replay_file.write(replay(), tmp_path).read_text())
    content["schedule"]["steps"][0]["type"] = "explode"
    assert "explode" in broken(tmp_path, json.dumps(content))


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_version_is_unknown_whatever_else_it_holds(tmp_path, version):
    sentence = broken(tmp_path, json.dumps({"replay": version, "plan": []}))
    assert f"version {json.dumps(version)}" in sentence
