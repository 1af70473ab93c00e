"""Acks of the reference broker (contract 5)."""

import pytest


async def three(driver, **query):
    await driver.push("a", "b", "c")
    return await driver.pop(**query)


async def ids_again(driver):
    return await driver.pop_ids()


# Completed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["completed", "success", "acked", "ok", None])
async def test_each_word_for_completed_moves_the_cursor(driver, status):
    messages = await three(driver)
    assert (await driver.ack(messages[2], status))["success"] is True
    assert await ids_again(driver) == []


async def test_the_single_endpoint_answers_a_list_of_one_with_every_key(driver):
    messages = await three(driver)
    assert await driver.ack(messages[0]) == {
        "index": 0,
        "transactionId": "a",
        "success": True,
        "error": None,
        "leaseReleased": False,
        "dlq": False,
        "noop": False,
    }


async def test_a_completed_message_completes_what_is_before_it(driver):
    messages = await three(driver)
    await driver.ack(messages[1])
    await driver.ack(messages[2])
    assert await ids_again(driver) == []


async def test_before_the_end_of_the_batch_the_lease_stays(driver):
    messages = await three(driver)
    assert (await driver.ack(messages[1]))["leaseReleased"] is False
    assert await ids_again(driver) == []


async def test_the_end_of_the_batch_releases_the_lease(driver):
    messages = await three(driver, batch=2)
    assert (await driver.ack(messages[1]))["leaseReleased"] is True
    assert await ids_again(driver) == ["c"]


async def test_a_batch_answers_in_request_order(driver):
    messages = await three(driver)
    results = await driver.ack_all((messages[2], "completed"), (messages[0], "completed"))
    assert [(result["index"], result["transactionId"]) for result in results] == [(0, "c"), (1, "a")]


async def test_a_batch_settles_several_partitions(driver):
    await driver.push("a", partition="p")
    await driver.push("b", partition="r")
    messages = await driver.pop(partitions=0)
    results = await driver.ack_all(*((message, "completed") for message in messages))
    assert [result["leaseReleased"] for result in results] == [True, True]


async def test_an_empty_batch_answers_an_empty_list(driver):
    answer = await driver.call("POST", "/api/v1/ack/batch", {"acknowledgments": []})
    assert (answer.status, answer.json) == (200, [])


async def test_an_ack_of_one_group_moves_no_other(driver):
    await driver.push("a")
    (mine,) = await driver.pop(consumerGroup="g", subscriptionMode="all")
    await driver.pop(consumerGroup="h", subscriptionMode="all", leaseSeconds=1)
    await driver.ack(mine)
    driver.clock.advance(1)
    assert await driver.pop_ids(consumerGroup="h") == ["a"]


async def test_acks_survive_a_restart(driver):
    messages = await three(driver)
    await driver.ack(messages[1])
    driver.kill_and_restart()
    driver.clock.advance(60)
    assert await ids_again(driver) == ["c"]


# Failed and retry -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["failed", "retry"])
async def test_a_nack_gives_back_the_message_and_all_after_it(driver, status):
    messages = await three(driver)
    result = await driver.ack(messages[1], status)
    assert (result["success"], result["leaseReleased"]) == (True, True)
    assert await ids_again(driver) == ["b", "c"]


@pytest.mark.parametrize("status", ["Completed", "FAILED", "nack", "", "done"])
async def test_an_unknown_word_is_failed(driver, status):
    await driver.configure(retryLimit=0)
    messages = await three(driver)
    assert (await driver.ack(messages[0], status))["dlq"] is True


async def fail(driver, times, status="failed"):
    results = []
    for _ in range(times):
        (message, *_) = await driver.pop()
        results.append(await driver.ack(message, status, error="boom"))
    return results


async def test_failures_up_to_the_limit_come_back_and_the_next_is_filed(driver):
    await driver.push("a", "b")
    assert [result["dlq"] for result in await fail(driver, 4)] == [False, False, False, True]
    assert await ids_again(driver) == ["b"]


async def test_a_spent_message_releases_the_lease(driver):
    await driver.configure(retryLimit=0)
    await driver.push("a", "b")
    assert (await fail(driver, 1))[0]["leaseReleased"] is True


async def test_a_retry_spends_nothing(driver):
    await driver.push("a")
    assert [result["dlq"] for result in await fail(driver, 6, "retry")] == [False] * 6
    assert (await fail(driver, 1))[0]["dlq"] is False


async def test_several_failures_of_one_call_count_once(driver):
    await driver.configure(retryLimit=1)
    messages = await three(driver)
    await driver.ack_all(*((message, "failed") for message in messages))
    assert (await fail(driver, 1))[0]["dlq"] is True


async def test_the_budget_is_one_counter_for_the_partition(driver):
    await driver.configure(retryLimit=1)
    messages = await three(driver)
    await driver.ack(messages[0], "failed")
    messages = await driver.pop()
    assert (await driver.ack(messages[1], "failed"))["dlq"] is True


async def test_the_budget_is_counted_per_group(driver):
    await driver.configure(retryLimit=1)
    await driver.push("a")
    for group in ("g", "h"):
        (message,) = await driver.pop(consumerGroup=group, subscriptionMode="all")
        assert (await driver.ack(message, "failed"))["dlq"] is False


async def test_the_budget_is_counted_per_partition(driver):
    await driver.configure(retryLimit=1)
    for partition in ("p", "r"):
        await driver.push("a", partition=partition)
        (message,) = await driver.pop("q", partition)
        assert (await driver.ack(message, "failed"))["dlq"] is False


async def test_a_completed_batch_resets_the_budget(driver):
    await driver.configure(retryLimit=1)
    await driver.push("a", "b")
    await fail(driver, 1)
    await driver.ack((await driver.pop(batch=1))[0])
    assert (await fail(driver, 1))[0]["dlq"] is False


async def test_a_partial_ack_does_not_reset_the_budget(driver):
    await driver.configure(retryLimit=1)
    await driver.push("a", "b")
    await fail(driver, 1)
    messages = await driver.pop()
    await driver.ack(messages[0])
    assert (await driver.ack(messages[1], "failed"))["dlq"] is True


async def test_a_retry_does_not_reset_the_budget(driver):
    await driver.configure(retryLimit=1)
    await driver.push("a")
    await fail(driver, 1)
    await fail(driver, 1, "retry")
    assert (await fail(driver, 1))[0]["dlq"] is True


async def test_a_dead_letter_resets_the_budget(driver):
    await driver.configure(retryLimit=1)
    await driver.push("a", "b")
    await fail(driver, 2)
    assert (await fail(driver, 1))[0]["dlq"] is False


async def test_the_budget_survives_a_restart(driver):
    await driver.configure(retryLimit=1)
    await driver.push("a")
    await fail(driver, 1)
    driver.kill_and_restart()
    assert (await fail(driver, 1))[0]["dlq"] is True


@pytest.mark.parametrize(
    ("letters", "after", "kept"), [(True, True, 1), (True, False, 1), (False, True, 1), (False, False, 0)]
)
async def test_a_spent_message_is_dropped_only_where_both_options_are_off(driver, letters, after, kept):
    await driver.configure(retryLimit=0, deadLetterQueue=letters, dlqAfterMaxRetries=after)
    await driver.push("a", "b")
    (result,) = await fail(driver, 1)
    assert (result["success"], result["dlq"]) == (True, bool(kept))
    assert len(await driver.dead_letters(queue="q")) == kept
    assert await ids_again(driver) == ["b"]


# Dead letters -----------------------------------------------------------------------------------------------------


async def test_dlq_files_at_once_and_passes_the_message(driver):
    messages = await three(driver)
    result = await driver.ack(messages[0], "dlq")
    assert (result["success"], result["dlq"]) == (True, True)
    driver.clock.advance(60)
    assert await ids_again(driver) == ["b", "c"]


async def test_dlq_in_the_middle_of_a_batch_keeps_the_lease(driver):
    messages = await three(driver)
    assert (await driver.ack(messages[0], "dlq"))["leaseReleased"] is False
    assert (await driver.ack(messages[1]))["success"] is True


async def test_dlq_of_the_last_message_releases_the_lease(driver):
    messages = await three(driver, batch=1)
    assert (await driver.ack(messages[0], "dlq"))["leaseReleased"] is True
    assert await ids_again(driver) == ["b", "c"]


async def test_dlq_passes_what_lies_below_it(driver):
    messages = await three(driver)
    await driver.ack(messages[1], "dlq")
    assert [letter["transactionId"] for letter in await driver.dead_letters()] == ["b"]
    driver.clock.advance(60)
    assert await ids_again(driver) == ["c"]


async def test_a_dead_letter_tells_what_failed(driver):
    (pushed,) = await driver.push("a")
    (message,) = await driver.pop(consumerGroup="g", subscriptionMode="all")
    await driver.ack(message, "dlq", error="boom")
    (letter,) = await driver.dead_letters(queue="q", consumerGroup="g")
    assert (letter["data"], letter["errorMessage"], letter["retryCount"]) == ("a", "boom", 0)
    assert (letter["queue"], letter["partition"], letter["consumerGroup"]) == ("q", "p", "g")
    assert (letter["messageId"], letter["offset"]) == (pushed["message_id"], 0)


async def test_a_dead_letter_counts_its_retries(driver):
    await driver.push("a")
    await fail(driver, 4)
    assert [letter["retryCount"] for letter in await driver.dead_letters()] == [3]


async def test_dead_letters_are_those_of_one_group(driver):
    await driver.push("a")
    (message,) = await driver.pop(consumerGroup="g", subscriptionMode="all")
    await driver.ack(message, "dlq")
    assert await driver.dead_letters(consumerGroup="h") == []
    assert await driver.pop_ids(consumerGroup="h", subscriptionMode="all") == ["a"]


# Several in one call ----------------------------------------------------------------------------------------------


async def test_the_cursor_stops_at_the_lowest_nack(driver):
    messages = await three(driver)
    await driver.ack_all((messages[0], "completed"), (messages[1], "failed"), (messages[2], "completed"))
    assert await ids_again(driver) == ["b", "c"]


async def test_the_order_of_the_items_does_not_matter(driver):
    messages = await three(driver)
    await driver.ack_all((messages[2], "completed"), (messages[1], "retry"), (messages[0], "completed"))
    assert await ids_again(driver) == ["b", "c"]


async def test_a_completed_above_a_dead_letter_counts(driver):
    messages = await three(driver)
    results = await driver.ack_all((messages[0], "dlq"), (messages[2], "completed"))
    assert [result["dlq"] for result in results] == [True, False]
    assert await ids_again(driver) == []


async def test_several_dead_letters_of_one_call_are_all_filed(driver):
    messages = await three(driver)
    results = await driver.ack_all((messages[0], "dlq"), (messages[1], "completed"), (messages[2], "dlq"))
    assert [result["dlq"] for result in results] == [True, False, True]
    assert [letter["transactionId"] for letter in await driver.dead_letters()] == ["a", "c"]


async def test_a_dead_letter_below_a_nack_is_filed(driver):
    messages = await three(driver)
    await driver.ack_all((messages[0], "dlq"), (messages[1], "retry"))
    assert [letter["transactionId"] for letter in await driver.dead_letters()] == ["a"]
    assert await ids_again(driver) == ["b", "c"]


async def test_a_dead_letter_above_a_nack_is_not_filed_and_says_so(driver):
    messages = await three(driver)
    results = await driver.ack_all((messages[0], "failed"), (messages[1], "dlq"))
    assert results[1]["dlq"] is False
    assert await driver.dead_letters() == []
    assert await ids_again(driver) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("words", "dead", "left"),
    [
        (("dlq", "failed"), ["a"], ["b", "c"]),
        (("failed", "dlq"), ["a"], ["b", "c"]),
        (("retry", "failed"), ["a"], ["b", "c"]),
        (("completed", "retry"), [], ["a", "b", "c"]),
        (("retry", "dlq"), ["a"], ["b", "c"]),
    ],
)
async def test_at_one_message_the_strongest_word_wins(driver, words, dead, left):
    await driver.configure(retryLimit=0)
    messages = await three(driver)
    await driver.ack_all(*((messages[0], word) for word in words))
    driver.clock.advance(300)
    assert [letter["transactionId"] for letter in await driver.dead_letters()] == dead
    assert await ids_again(driver) == left


async def test_what_is_above_a_spent_message_comes_again(driver):
    await driver.configure(retryLimit=0)
    messages = await three(driver)
    results = await driver.ack_all((messages[0], "failed"), (messages[2], "completed"))
    assert results[0]["dlq"] is True
    assert await ids_again(driver) == ["b", "c"]


async def test_a_refused_item_leaves_the_others_alone(driver):
    messages = await three(driver)
    results = await driver.ack_all(({**messages[0], "transactionId": "nope"}, "completed"), (messages[2], "completed"))
    assert [result["success"] for result in results] == [False, True]
    assert await ids_again(driver) == []


async def test_items_with_different_leases_are_separate_acks(driver):
    messages = await three(driver)
    results = await driver.ack_all(({**messages[0], "leaseId": "stale"}, "failed"), (messages[2], "completed"))
    assert [result["success"] for result in results] == [False, True]
    assert await ids_again(driver) == []


# The fence --------------------------------------------------------------------------------------------------------


async def test_an_expired_lease_is_refused(driver):
    messages = await three(driver, leaseSeconds=1)
    driver.clock.advance(1)
    result = await driver.ack(messages[2])
    assert (result["success"], result["error"]) == (False, "invalid or expired lease")
    assert await ids_again(driver) == ["a", "b", "c"]


async def test_a_stale_lease_moves_nothing_of_the_next_holder(driver):
    stale = await three(driver, leaseSeconds=1)
    driver.clock.advance(1)
    await driver.pop()
    for status in ("completed", "failed", "retry", "dlq"):
        assert (await driver.ack(stale[0], status))["success"] is False
    assert await ids_again(driver) == []


async def test_the_lease_of_another_partition_is_refused(driver):
    await driver.push("a", partition="p")
    await driver.push("b", partition="r")
    (mine,) = await driver.pop("q", "p")
    (other,) = await driver.pop("q", "r")
    assert (await driver.ack(mine, lease=other["leaseId"]))["success"] is False


async def test_the_lease_of_another_group_is_refused(driver):
    await driver.push("a")
    (mine,) = await driver.pop(consumerGroup="g", subscriptionMode="all")
    (other,) = await driver.pop(consumerGroup="h", subscriptionMode="all")
    assert (await driver.ack(mine, lease=other["leaseId"]))["success"] is False


async def test_a_message_above_the_batch_is_refused(driver):
    messages = await three(driver, batch=1)
    result = await driver.ack({**messages[0], "transactionId": "b"})
    assert result["success"] is False
    assert "unresolvable" in result["error"]


async def test_an_unknown_message_is_refused(driver):
    messages = await three(driver)
    assert (await driver.ack({**messages[0], "transactionId": "nope"}))["success"] is False


@pytest.mark.parametrize("partition_id", ["999", "x", "-1", "", "1.0", "9" * 40, "²"])
async def test_an_unknown_partition_is_refused(driver, partition_id):
    messages = await three(driver)
    assert (await driver.ack({**messages[0], "partitionId": partition_id}))["success"] is False


# Repetition -------------------------------------------------------------------------------------------------------


async def test_a_repeated_completed_under_a_live_lease_is_a_no_op(driver):
    messages = await three(driver)
    await driver.ack(messages[0])
    result = await driver.ack(messages[0])
    assert (result["success"], result["noop"]) == (True, True)


@pytest.mark.parametrize("status", ["failed", "retry", "dlq"])
async def test_the_other_words_below_the_cursor_are_refused(driver, status):
    messages = await three(driver)
    await driver.ack(messages[0])
    result = await driver.ack(messages[0], status)
    assert (result["success"], result["error"]) == (False, "already committed")
    assert await ids_again(driver) == []


@pytest.mark.parametrize("status", ["completed", "failed", "retry", "dlq"])
async def test_the_ack_that_released_a_lease_is_answered_again_as_the_first_time(driver, status):
    messages = await three(driver)
    first = await driver.ack(messages[2], status)
    assert await driver.ack(messages[2], status) == first


async def test_a_repeated_failure_spends_no_second_retry(driver):
    await driver.configure(retryLimit=2)
    await driver.push("a")
    (message,) = await driver.pop()
    await driver.ack(message, "failed")
    await driver.ack(message, "failed")
    assert (await fail(driver, 1))[0]["dlq"] is False


async def test_a_repeated_nack_takes_nothing_from_the_next_holder(driver):
    messages = await three(driver)
    await driver.ack(messages[0], "retry")
    await driver.pop()
    await driver.ack(messages[0], "retry")
    assert await ids_again(driver) == []


async def test_another_ack_under_a_released_lease_is_refused(driver):
    messages = await three(driver)
    await driver.ack(messages[2], "retry")
    assert (await driver.ack(messages[1], "completed"))["success"] is False


async def test_a_repeated_batch_is_answered_as_the_first_time(driver):
    messages = await three(driver)
    pairs = [(message, "completed") for message in messages]
    assert await driver.ack_all(*pairs) == await driver.ack_all(*pairs)


async def test_a_released_lease_is_remembered_over_a_restart(driver):
    messages = await three(driver)
    first = await driver.ack(messages[2])
    driver.kill_and_restart()
    assert await driver.ack(messages[2]) == first


# Without a lease --------------------------------------------------------------------------------------------------


async def test_an_unfenced_ack_moves_the_cursor_of_whoever_holds_the_batch(driver):
    messages = await three(driver)
    result = await driver.ack(messages[2], lease=None)
    assert (result["success"], result["leaseReleased"]) == (True, True)
    assert await ids_again(driver) == []


async def test_an_empty_lease_id_is_not_fenced(driver):
    messages = await three(driver)
    assert (await driver.ack(messages[0], lease=""))["success"] is True


async def test_an_unfenced_nack_releases_the_lease_of_whoever_holds_it(driver):
    messages = await three(driver)
    await driver.ack(messages[0], "retry", lease=None)
    assert await ids_again(driver) == ["a", "b", "c"]


async def test_an_unfenced_ack_cannot_reach_above_the_batch(driver):
    messages = await three(driver, batch=1)
    assert (await driver.ack({**messages[0], "transactionId": "b"}, lease=None))["success"] is False


async def test_an_expired_batch_still_bounds_an_unfenced_ack(driver):
    messages = await three(driver, batch=1, leaseSeconds=1)
    driver.clock.advance(1)
    assert (await driver.ack({**messages[0], "transactionId": "b"}, lease=None))["success"] is False
    assert (await driver.ack(messages[0], lease=None))["success"] is True


async def test_without_a_batch_an_unfenced_completed_reaches_any_stored_message(driver):
    messages = await three(driver, batch=1)
    await driver.ack(messages[0])
    assert (await driver.ack({**messages[0], "transactionId": "b"}, lease=None))["success"] is True
    assert await ids_again(driver) == ["c"]


@pytest.mark.parametrize("status", ["failed", "retry", "dlq"])
async def test_without_a_batch_the_other_words_change_nothing(driver, status):
    messages = await three(driver, batch=1)
    await driver.ack(messages[0])
    result = await driver.ack({**messages[0], "transactionId": "b"}, status, lease=None)
    assert (result["success"], result["dlq"], result["leaseReleased"]) == (True, False, False)
    assert await ids_again(driver) == ["b", "c"]
    assert await driver.dead_letters() == []


async def test_an_unfenced_ack_of_a_group_that_never_popped_moves_its_cursor(driver):
    messages = await three(driver)
    await driver.ack({**messages[0], "consumerGroup": "g"}, lease=None)
    assert await driver.pop_ids(consumerGroup="g", subscriptionMode="all") == ["b", "c"]


async def test_a_first_pop_after_an_unfenced_ack_still_starts_new_at_the_tip(driver):
    messages = await three(driver)
    await driver.ack({**messages[0], "consumerGroup": "g"}, lease=None)
    assert await driver.pop(consumerGroup="g") == []


# Ids that occur twice ---------------------------------------------------------------------------------------------


async def test_an_id_that_occurs_twice_means_its_first_message_above_the_cursor(driver):
    await driver.configure(dedupWindowSeconds=0)
    for name in ("a", "b", "a"):
        await driver.push(name)
    messages = await driver.pop(leaseSeconds=1)
    await driver.ack(messages[0])
    driver.clock.advance(1)
    assert await ids_again(driver) == ["b", "a"]


async def test_an_id_acked_twice_in_one_call_means_both_messages(driver):
    await driver.configure(dedupWindowSeconds=0)
    for name in ("a", "b", "a"):
        await driver.push(name)
    messages = await driver.pop()
    results = await driver.ack_all(*((message, "completed") for message in messages))
    assert [result["leaseReleased"] for result in results] == [True, True, True]


async def test_an_id_stored_again_after_its_window_can_be_acked(driver):
    await driver.configure(dedupWindowSeconds=1)
    await driver.push("a")
    await driver.ack((await driver.pop())[0])
    driver.clock.advance(2)
    await driver.push("a")
    (message,) = await driver.pop()
    assert (await driver.ack(message))["noop"] is False
    assert await ids_again(driver) == []


# Malformed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        b"[]",
        b"{}",
        b'{"transactionId":"a"}',
        b'{"partitionId":"1"}',
        b'{"transactionId":1,"partitionId":"1"}',
        b'{"transactionId":"a","partitionId":1}',
        b'{"transactionId":"a","partitionId":"1","status":1}',
        b'{"transactionId":"a","partitionId":"1","leaseId":1}',
        b'{"transactionId":"a","partitionId":"1","consumerGroup":1}',
        b'{"transactionId":"a\\u0000","partitionId":"1"}',
        b'{"transactionId":"\xff","partitionId":"1"}',
    ],
)
async def test_a_malformed_ack_is_400_and_changes_nothing(driver, body):
    await three(driver, leaseSeconds=1)
    assert (await driver.call("POST", "/api/v1/ack", raw=body)).status == 400
    driver.clock.advance(1)
    assert await ids_again(driver) == ["a", "b", "c"]


@pytest.mark.parametrize("body", [b"{}", b'{"acknowledgments":1}', b'{"acknowledgments":[{}]}', b"[]"])
async def test_a_malformed_batch_is_400(driver, body):
    assert (await driver.call("POST", "/api/v1/ack/batch", raw=body)).status == 400


async def test_one_malformed_item_refuses_the_whole_batch(driver):
    messages = await three(driver)
    good = {"transactionId": "c", "partitionId": messages[0]["partitionId"]}
    answer = await driver.call("POST", "/api/v1/ack/batch", {"acknowledgments": [good, {"transactionId": "a"}]})
    assert answer.status == 400
    driver.clock.advance(60)
    assert await ids_again(driver) == ["a", "b", "c"]


async def test_an_item_of_a_batch_has_no_group_of_its_own(driver):
    await driver.push("a")
    (message,) = await driver.pop(consumerGroup="g", subscriptionMode="all")
    item = {key: message[key] for key in ("transactionId", "partitionId", "leaseId", "consumerGroup")}
    answer = await driver.call("POST", "/api/v1/ack/batch", {"acknowledgments": [item]})
    assert answer.json[0]["success"] is False
