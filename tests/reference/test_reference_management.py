"""Configuring and deleting in the reference broker (contract 7)."""

import pytest


async def delete_queue(driver, path="q"):
    answer = await driver.call("DELETE", f"/api/v1/resources/queues/{path}")
    assert answer.status == 200
    return answer.json


async def delete_group(driver, path):
    answer = await driver.call("DELETE", f"/api/v1/consumer-groups/{path}")
    assert answer.status == 200
    return answer.json


# Configure --------------------------------------------------------------------------------------------------------


async def test_configure_answers_every_option(driver):
    answer = await driver.configure(retryLimit=7)
    assert answer.json["options"] == {
        "leaseTime": 300,
        "retryLimit": 7,
        "deadLetterQueue": True,
        "dlqAfterMaxRetries": True,
        "dedupWindowSeconds": 3600,
        "delayedProcessing": 0,
        "windowBuffer": 0,
    }


async def test_options_that_are_not_named_keep_their_value(driver):
    await driver.configure(dedupWindowSeconds=5, retryLimit=1, deadLetterQueue=False)
    options = (await driver.configure(leaseTime=9)).json["options"]
    assert (options["dedupWindowSeconds"], options["retryLimit"], options["deadLetterQueue"]) == (5, 1, False)


async def test_a_queue_made_by_a_push_keeps_its_lease_time(driver):
    await driver.push("a")
    assert (await driver.configure(retryLimit=1)).json["options"]["leaseTime"] == 60


async def test_null_does_not_name_an_option(driver):
    await driver.configure(retryLimit=1)
    assert (await driver.configure(retryLimit=None)).json["options"]["retryLimit"] == 1


async def test_options_that_mean_nothing_here_are_kept(driver):
    await driver.configure(retentionSeconds=60, priority={"a": [1.5]})
    options = (await driver.configure(leaseTime=9)).json["options"]
    assert (options["retentionSeconds"], options["priority"]) == (60, {"a": [1.5]})


async def test_labels_are_kept(driver):
    await driver.call("POST", "/api/v1/configure", {"queue": "q", "namespace": "n", "task": "t", "options": {}})
    answer = (await driver.configure(leaseTime=9)).json
    assert (answer["namespace"], answer["task"]) == ("n", "t")


async def test_options_may_be_absent(driver):
    assert (await driver.call("POST", "/api/v1/configure", {"queue": "q"})).status == 200


async def test_options_survive_a_restart(driver):
    await driver.configure(retryLimit=1)
    driver.kill_and_restart()
    assert (await driver.configure()).json["options"]["retryLimit"] == 1


@pytest.mark.parametrize(
    "options",
    [
        {"leaseTime": "5"},
        {"leaseTime": 1.5},
        {"leaseTime": True},
        {"leaseTime": 0},
        {"leaseTime": 10**11},
        {"retryLimit": -1},
        {"retryLimit": []},
        {"deadLetterQueue": 1},
        {"dlqAfterMaxRetries": "true"},
        {"dedupWindowSeconds": {}},
        {"delayedProcessing": -1},
        {"windowBuffer": "x"},
        {"leaseTime": 9, "retryLimit": "x"},
    ],
)
async def test_an_option_of_the_wrong_kind_is_400_and_changes_nothing(driver, options):
    await driver.configure(leaseTime=7)
    answer = await driver.call("POST", "/api/v1/configure", {"queue": "q", "options": options})
    assert answer.status == 400
    assert (await driver.configure()).json["options"]["leaseTime"] == 7


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"queue":1}', b'{"queue":""}', b'{"queue":"q","options":[]}', b'{"queue":"a\\n"}']
)
async def test_a_malformed_configure_is_400(driver, body):
    assert (await driver.call("POST", "/api/v1/configure", raw=body)).status == 400


# Deleting a queue -------------------------------------------------------------------------------------------------


async def test_a_deleted_queue_has_no_messages(driver):
    await driver.push("a")
    assert (await delete_queue(driver))["deleted"] is True
    assert await driver.pop() == []


async def test_a_deleted_queue_starts_anew(driver):
    await driver.push("a", "b")
    await driver.pop()
    await delete_queue(driver)
    (again,) = await driver.push("a")
    assert (again["status"], again["offset"]) == ("queued", 0)
    assert await driver.pop_ids() == ["a"]


async def test_a_deleted_queue_has_no_options(driver):
    await driver.configure(retryLimit=1)
    await delete_queue(driver)
    assert (await driver.configure()).json["options"]["retryLimit"] == 3


async def test_a_deleted_queue_forgets_where_groups_start(driver):
    await driver.push("a")
    await driver.pop(consumerGroup="g")
    await delete_queue(driver)
    await driver.push("b")
    assert await driver.pop_ids(consumerGroup="g", subscriptionMode="all") == ["b"]


async def test_a_deleted_queue_has_no_dead_letters(driver):
    await driver.push("a")
    await driver.ack((await driver.pop())[0], "dlq")
    await delete_queue(driver)
    await driver.push("a")
    assert await driver.dead_letters() == []


async def test_an_old_partition_id_does_not_reach_the_new_queue(driver):
    await driver.push("a")
    (old,) = await driver.pop()
    await delete_queue(driver)
    await driver.push("a")
    (new,) = await driver.pop()
    assert new["partitionId"] != old["partitionId"]
    assert (await driver.ack(old, lease=None))["success"] is False


async def test_deleting_a_queue_leaves_the_others(driver):
    await driver.push("a", queue="q")
    await driver.push("b", queue="r")
    await delete_queue(driver)
    assert await driver.pop_ids("r") == ["b"]


async def test_deleting_what_is_not_there_is_200(driver):
    assert (await delete_queue(driver))["deleted"] is False


async def test_a_queue_with_a_slash_can_be_deleted(driver):
    await driver.push("a", queue="a/b")
    await delete_queue(driver, "a%2Fb")
    assert await driver.pop("a/b") == []


# Deleting a group -------------------------------------------------------------------------------------------------


async def test_the_next_pop_of_a_forgotten_group_is_a_first_one(driver):
    await driver.push("a")
    await driver.pop(consumerGroup="g")
    await delete_group(driver, "g")
    assert await driver.pop_ids(consumerGroup="g", subscriptionMode="all") == ["a"]


async def test_a_forgotten_group_holds_no_lease(driver):
    await driver.push("a")
    await driver.pop(consumerGroup="g", subscriptionMode="all")
    await delete_group(driver, "g")
    assert await driver.pop_ids(consumerGroup="g", subscriptionMode="all") == ["a"]


async def test_a_group_is_forgotten_in_one_queue_only(driver):
    for queue in ("q", "r"):
        await driver.push("a", queue=queue)
        await driver.pop(queue, consumerGroup="g")
    await delete_group(driver, "g/queues/q")
    assert await driver.pop_ids("q", consumerGroup="g", subscriptionMode="all") == ["a"]
    assert await driver.pop_ids("r", consumerGroup="g", subscriptionMode="all") == []


async def test_forgetting_a_group_leaves_the_others(driver):
    await driver.push("a")
    await driver.pop(consumerGroup="h", subscriptionMode="all")
    await delete_group(driver, "g")
    assert await driver.pop(consumerGroup="h") == []


async def test_forgetting_a_group_that_is_not_there_is_200(driver):
    assert (await delete_group(driver, "nobody"))["deleted"] is False


# Dead letters -----------------------------------------------------------------------------------------------------


async def test_dead_letters_are_filtered_and_counted(driver):
    for queue in ("q", "r"):
        await driver.push("a", queue=queue)
        await driver.ack((await driver.pop(queue))[0], "dlq")
    assert len(await driver.dead_letters()) == 2
    assert [letter["queue"] for letter in await driver.dead_letters(queue="r")] == ["r"]


async def test_dead_letters_come_in_pages(driver):
    await driver.push("a", "b", "c")
    await driver.ack_all(*((message, "dlq") for message in await driver.pop()))
    assert [letter["transactionId"] for letter in await driver.dead_letters(limit=1, offset=1)] == ["b"]


async def test_a_dead_letter_keeps_the_very_text_of_its_payload(driver):
    await driver.call("POST", "/api/v1/push", raw=b'{"items":[{"queue":"q","payload":[1e400]}]}')
    (message,) = (await driver.pop_answer()).json["messages"]
    await driver.ack(message, "dlq")
    assert b'"data":[1e400]' in (await driver.call("GET", "/api/v1/dlq")).body


@pytest.mark.parametrize("query", ["limit=x", "queue=a&queue=b", "offset=1.5"])
async def test_a_dead_letter_query_that_does_not_parse_is_400(driver, query):
    assert (await driver.call("GET", "/api/v1/dlq", query=query)).status == 400
