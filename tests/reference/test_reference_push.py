"""The reference broker stores what is pushed, once and in order (contract 2)."""

import uuid

import pytest

LONGEST_ID = 65_535


async def push_items(driver, *items):
    return await driver.call("POST", "/api/v1/push", {"items": list(items)})


async def stored(driver, queue="q"):
    return await driver.pop_ids(queue, consumerGroup="audit", subscriptionMode="all", partitions=0)


async def test_push_answers_201_with_one_result_per_item_in_order(driver):
    answer = await push_items(driver, *({"queue": "q", "payload": n, "transactionId": f"t{n}"} for n in range(3)))
    assert answer.status == 201
    assert [(item["index"], item["transaction_id"]) for item in answer.json] == [(0, "t0"), (1, "t1"), (2, "t2")]


async def test_a_result_names_queue_status_message_and_offset(driver):
    (item,) = await driver.push("a")
    assert item["queueName"] == "q"
    assert item["status"] == "queued"
    assert item["offset"] == 0
    assert item["message_id"]


async def test_the_message_id_is_a_uuid_of_version_7(driver):
    (item,) = await driver.push("a")
    assert uuid.UUID(item["message_id"]).version == 7


async def test_the_message_id_begins_with_the_time(driver):
    (item,) = await driver.push("a")
    assert uuid.UUID(item["message_id"]).int >> 80 == driver.clock.now_ms()


async def test_a_transaction_id_defaults_to_the_message_id(driver):
    answer = await push_items(driver, {"queue": "q", "payload": 1})
    (item,) = answer.json
    assert item["transaction_id"] == item["message_id"]


async def test_a_partition_defaults_to_default(driver):
    await push_items(driver, {"queue": "q", "payload": 1})
    (message,) = await driver.pop()
    assert message["partition"] == "Default"


async def test_null_partition_and_transaction_id_count_as_absent(driver):
    answer = await push_items(driver, {"queue": "q", "payload": 1, "partition": None, "transactionId": None})
    (message,) = await driver.pop()
    assert (message["partition"], message["transactionId"]) == ("Default", answer.json[0]["message_id"])


async def test_the_empty_string_is_a_partition_of_its_own(driver):
    await push_items(driver, {"queue": "q", "payload": 1, "partition": ""}, {"queue": "q", "payload": 2})
    assert [message["data"] for message in await driver.pop("q", "")] == [1]


async def test_the_empty_string_is_a_transaction_id_of_its_own(driver):
    first = await push_items(driver, {"queue": "q", "payload": 1, "transactionId": ""})
    second = await push_items(driver, {"queue": "q", "payload": 1, "transactionId": ""})
    assert [first.json[0]["status"], second.json[0]["status"]] == ["queued", "duplicate"]


async def test_offsets_start_at_zero_without_gaps_per_partition(driver):
    pushed = await driver.push("a", "b") + await driver.push("c") + await driver.push("d", partition="other")
    assert [item["offset"] for item in pushed] == [0, 1, 2, 0]


async def test_a_duplicate_takes_no_offset(driver):
    await driver.push("a")
    pushed = await driver.push("a", "b")
    assert [item["offset"] for item in pushed] == [0, 1]


async def test_no_items_answer_201_and_an_empty_list(driver):
    answer = await push_items(driver)
    assert (answer.status, answer.json) == (201, [])


async def test_items_of_one_request_keep_their_order(driver):
    names = [f"m{n:02d}" for n in range(40)]
    await driver.push(*names)
    assert await stored(driver) == names


# Duplicates -------------------------------------------------------------------------------------------------------


async def test_a_second_push_of_an_id_answers_the_original(driver):
    (first,) = await driver.push("a")
    driver.clock.advance(10)
    (second,) = await driver.push("a")
    assert second["status"] == "duplicate"
    assert (second["message_id"], second["offset"]) == (first["message_id"], first["offset"])


async def test_a_duplicate_is_not_stored(driver):
    await driver.push("a")
    await driver.push("a")
    assert await stored(driver) == ["a"]


async def test_the_payload_kept_is_the_original(driver):
    await push_items(driver, {"queue": "q", "payload": "first", "transactionId": "a"})
    await push_items(driver, {"queue": "q", "payload": "second", "transactionId": "a"})
    assert [message["data"] for message in await driver.pop()] == ["first"]


async def test_an_id_repeated_in_one_request_is_stored_once(driver):
    pushed = await driver.push("a", "b", "a")
    assert [item["status"] for item in pushed] == ["queued", "queued", "duplicate"]
    assert pushed[2]["message_id"] == pushed[0]["message_id"]


async def test_an_id_repeated_in_one_request_is_a_duplicate_also_without_a_window(driver):
    await driver.configure(dedupWindowSeconds=0)
    pushed = await driver.push("a", "a")
    assert [item["status"] for item in pushed] == ["queued", "duplicate"]


async def test_one_duplicate_does_not_decide_for_the_others(driver):
    await driver.push("a")
    pushed = await driver.push("a", "b", "c")
    assert [item["status"] for item in pushed] == ["duplicate", "queued", "queued"]


async def test_the_same_id_in_another_partition_is_another_message(driver):
    await driver.push("a", partition="p")
    (other,) = await driver.push("a", partition="r")
    assert other["status"] == "queued"


async def test_the_same_id_in_another_queue_is_another_message(driver):
    await driver.push("a", queue="q")
    (other,) = await driver.push("a", queue="r")
    assert other["status"] == "queued"


async def test_a_consumed_id_is_still_remembered(driver):
    await driver.push("a")
    (message,) = await driver.pop()
    await driver.ack(message)
    (again,) = await driver.push("a")
    assert again["status"] == "duplicate"


async def test_the_window_is_an_hour_by_default(driver):
    await driver.push("a")
    driver.clock.advance(3599.999)
    (inside,) = await driver.push("a")
    driver.clock.advance(0.001)
    (outside,) = await driver.push("a")
    assert [inside["status"], outside["status"]] == ["duplicate", "queued"]


async def test_a_duplicate_does_not_refresh_the_window(driver):
    await driver.configure(dedupWindowSeconds=10)
    await driver.push("a")
    driver.clock.advance(6)
    await driver.push("a")
    driver.clock.advance(6)
    (third,) = await driver.push("a")
    assert third["status"] == "queued"


async def test_an_id_stored_again_begins_a_new_window(driver):
    await driver.configure(dedupWindowSeconds=10)
    await driver.push("a")
    driver.clock.advance(11)
    (second,) = await driver.push("a")
    driver.clock.advance(9)
    (third,) = await driver.push("a")
    assert (third["status"], third["offset"]) == ("duplicate", second["offset"])


async def test_the_window_is_the_one_configured_at_the_second_push(driver):
    await driver.push("a")
    driver.clock.advance(100)
    await driver.configure(dedupWindowSeconds=50)
    (second,) = await driver.push("a")
    assert second["status"] == "queued"


@pytest.mark.parametrize("window_s", [0, -1])
async def test_a_window_of_zero_or_less_is_off(driver, window_s):
    await driver.configure(dedupWindowSeconds=window_s)
    await driver.push("a")
    (second,) = await driver.push("a")
    assert second["status"] == "queued"


async def test_many_ids_in_one_partition_are_all_stored(driver):
    names = [f"{n:06x}" for n in range(3000)]
    pushed = await driver.push(*names)
    assert {item["status"] for item in pushed} == {"queued"}


# Refusals ---------------------------------------------------------------------------------------------------------

GOOD = {"queue": "q", "payload": "good", "transactionId": "good"}


@pytest.mark.parametrize(
    "bad",
    [
        {"payload": 1},
        {"queue": "q"},
        {"queue": 1, "payload": 1},
        {"queue": None, "payload": 1},
        {"queue": "", "payload": 1},
        {"queue": "x" * 256, "payload": 1},
        {"queue": "a\x00b", "payload": 1},
        {"queue": "a\nb", "payload": 1},
        {"queue": "a\x7fb", "payload": 1},
        {"queue": "q", "payload": 1, "partition": 1},
        {"queue": "q", "payload": 1, "partition": "a\tb"},
        {"queue": "q", "payload": 1, "partition": "x" * 256},
        {"queue": "q", "payload": 1, "transactionId": 1},
        {"queue": "q", "payload": 1, "transactionId": "a\x01"},
        {"queue": "q", "payload": 1, "transactionId": "x" * (LONGEST_ID + 1)},
        {"queue": "q", "payload": 1, "transactionId": "é" * (LONGEST_ID // 2 + 1)},
        {"queue": "\ud800", "payload": 1},
        {"queue": "q", "payload": 1, "transactionId": "\udfff"},
        {"queue": "q", "payload": 1, "partition": ["p"]},
        "text",
        None,
        [],
    ],
)
async def test_one_malformed_item_refuses_the_whole_request(driver, bad):
    answer = await push_items(driver, GOOD, bad)
    assert answer.status == 400
    assert await stored(driver) == []


@pytest.mark.parametrize(
    "body",
    [b"", b"x", b"[]", b"null", b'{"items":1}', b'{"items":null}', b"{}", b'{"items":[]} x', b"\xff", b'{"items":[}'],
)
async def test_a_body_that_is_no_push_is_refused(driver, body):
    assert (await driver.call("POST", "/api/v1/push", raw=body)).status == 400


async def test_an_error_answer_says_why(driver):
    answer = await push_items(driver, {"queue": "x" * 256, "payload": 1})
    assert "256 characters" in answer.json["error"]


@pytest.mark.parametrize(
    "name", ["a/b", "a'b", 'a"b', "a b", "ü", "日本", "👩‍👩‍👧", "a%2Fb", "..", "?#+", "\\", "x" * 255, "é" * 255]
)
async def test_names_hold_any_character(driver, name):
    await driver.push("a", queue=name, partition=name)
    (message,) = await driver.pop(name, name)
    assert message["partition"] == name


async def test_names_are_case_sensitive(driver):
    await driver.push("a", queue="Queue")
    assert await driver.pop("queue") == []


@pytest.mark.parametrize("name", ['quote"', "back\\slash", "a/b", "日本", "x" * LONGEST_ID, "é" * (LONGEST_ID // 2)])
async def test_transaction_ids_hold_any_character_and_come_back(driver, name):
    await driver.push(name)
    assert await driver.pop_ids() == [name]


async def test_a_refused_long_id_leaves_its_neighbours_readable(driver):
    await driver.push("before")
    await push_items(driver, {"queue": "q", "partition": "p", "payload": 1, "transactionId": "x" * 70_000})
    await driver.push("after")
    assert await driver.pop_ids() == ["before", "after"]
