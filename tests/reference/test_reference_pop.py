"""The reference broker delivers runs of partitions to groups (contract 1 and 3)."""

from datetime import UTC, datetime

import pytest

from reference_broker import Engine

# The answer -------------------------------------------------------------------------------------------------------


async def test_an_answer_describes_the_claim(driver):
    await driver.push("a", "b")
    answer = (await driver.pop_answer(consumerGroup="g", subscriptionMode="all")).json
    assert answer["success"] is True
    assert (answer["queue"], answer["partition"], answer["consumerGroup"]) == ("q", "p", "g")
    assert answer["partitionsClaimed"] == 1
    assert answer["leaseId"]


async def test_a_message_carries_what_was_pushed(driver):
    (pushed,) = await driver.push("a")
    (message,) = await driver.pop()
    assert message["id"] == pushed["message_id"]
    assert (message["transactionId"], message["data"], message["offset"]) == ("a", "a", 0)
    assert message["createdAt"] == "2023-11-14T22:13:20.000Z"


async def test_a_message_has_every_documented_key(driver):
    await driver.push("a")
    (message,) = await driver.pop()
    assert set(message) == {
        "id",
        "transactionId",
        "traceId",
        "data",
        "producerSub",
        "createdAt",
        "partitionId",
        "partition",
        "leaseId",
        "consumerGroup",
        "deliveryAttempt",
        "offset",
    }


async def test_a_partition_id_is_digits(driver):
    await driver.push("a")
    (message,) = await driver.pop()
    assert message["partitionId"].isdigit()


async def test_no_group_is_the_reserved_group(driver):
    await driver.push("a")
    (message,) = await driver.pop()
    assert message["consumerGroup"] == "__QUEUE_MODE__"


async def test_an_empty_group_name_is_no_group(driver):
    await driver.push("a")
    (message,) = await driver.pop(consumerGroup="")
    assert message["consumerGroup"] == "__QUEUE_MODE__"


async def test_nothing_to_deliver_is_204_without_a_body(driver):
    answer = await driver.pop_answer()
    assert (answer.status, answer.body) == (204, b"")


async def test_a_pop_of_an_unknown_queue_does_not_create_it(driver):
    await driver.pop()
    await driver.configure()
    assert (await driver.configure()).json["options"]["leaseTime"] == 300


# Runs -------------------------------------------------------------------------------------------------------------


async def test_messages_come_in_offset_order_without_gap(driver):
    await driver.push("a", "b", "c")
    assert [message["offset"] for message in await driver.pop()] == [0, 1, 2]


async def test_a_run_starts_right_after_the_cursor(driver):
    await driver.push("a", "b", "c")
    first = await driver.pop(batch=2)
    await driver.ack(first[-1])
    assert await driver.pop_ids() == ["c"]


async def test_batch_limits_the_messages(driver):
    await driver.push("a", "b", "c")
    assert await driver.pop_ids(batch=2) == ["a", "b"]


async def test_batch_defaults_to_200(driver):
    await driver.push(*(f"m{n}" for n in range(250)))
    assert len(await driver.pop()) == 200


@pytest.mark.parametrize("batch", [0, -5])
async def test_a_batch_below_one_acts_as_one(driver, batch):
    await driver.push("a", "b")
    assert await driver.pop_ids(batch=batch) == ["a"]


async def test_a_leased_partition_gives_nothing_to_its_group(driver):
    await driver.push("a", "b")
    await driver.pop(batch=1)
    assert await driver.pop() == []


async def test_a_new_message_of_a_leased_partition_waits_for_the_lease(driver):
    await driver.push("a")
    await driver.pop()
    await driver.push("b")
    assert await driver.pop() == []


async def test_a_named_pop_reads_that_partition_only(driver):
    await driver.push("a", partition="p")
    await driver.push("b", partition="r")
    assert await driver.pop_ids("q", "r", partitions=0) == ["b"]


async def test_groups_have_cursors_of_their_own(driver):
    await driver.push("a")
    (message,) = await driver.pop(consumerGroup="g", subscriptionMode="all")
    await driver.ack(message)
    assert await driver.pop_ids(consumerGroup="h", subscriptionMode="all") == ["a"]


async def test_groups_have_leases_of_their_own(driver):
    await driver.push("a")
    await driver.pop(consumerGroup="g", subscriptionMode="all")
    assert await driver.pop_ids(consumerGroup="h", subscriptionMode="all") == ["a"]


# Wildcard pops ----------------------------------------------------------------------------------------------------


async def spread(driver, count):
    for number in range(count):
        await driver.push(f"a{number}", f"b{number}", partition=f"p{number}")


async def test_a_wildcard_pop_claims_one_partition_by_default(driver):
    await spread(driver, 3)
    assert len({message["partition"] for message in await driver.pop()}) == 1


async def test_partitions_caps_what_a_call_claims(driver):
    await spread(driver, 3)
    answer = (await driver.pop_answer(partitions=2)).json
    assert answer["partitionsClaimed"] == 2
    assert len({message["partition"] for message in answer["messages"]}) == 2


async def test_partitions_zero_is_no_cap(driver):
    await spread(driver, 4)
    assert len(await driver.pop(partitions=0)) == 8


async def test_batch_is_a_budget_for_the_whole_call(driver):
    await spread(driver, 3)
    assert len(await driver.pop(partitions=0, batch=3)) == 3


async def test_a_partition_beyond_the_budget_is_not_leased(driver):
    await spread(driver, 2)
    first = await driver.pop(partitions=0, batch=2)
    assert len({message["partition"] for message in first}) == 1
    assert len(await driver.pop(partitions=0)) == 2


async def test_one_lease_covers_every_partition_of_a_call(driver):
    await spread(driver, 3)
    assert len({message["leaseId"] for message in await driver.pop(partitions=0)}) == 1


async def test_a_wildcard_pop_passes_over_leased_partitions(driver):
    await spread(driver, 2)
    first = await driver.pop()
    second = await driver.pop()
    assert first[0]["partition"] != second[0]["partition"]


async def test_a_wildcard_pop_starves_no_partition(driver):
    await spread(driver, 3)
    seen = []
    for turn in range(6):
        (message,) = await driver.pop(batch=1)
        seen.append(message["partition"])
        await driver.ack(message, "retry")
        await driver.push(f"more{turn}", partition="p0")
    assert sorted(seen) == ["p0", "p0", "p1", "p1", "p2", "p2"]


async def test_the_top_level_partition_is_the_first_claimed(driver):
    await spread(driver, 2)
    answer = (await driver.pop_answer(partitions=0)).json
    assert answer["partitionId"] == answer["messages"][0]["partitionId"]


# autoAck ----------------------------------------------------------------------------------------------------------


async def test_auto_ack_commits_while_answering(driver):
    await driver.push("a")
    assert await driver.pop_ids(autoAck=True) == ["a"]
    assert await driver.pop() == []


async def test_auto_ack_takes_no_lease(driver):
    await driver.push("a")
    answer = (await driver.pop_answer(autoAck=True)).json
    assert answer["leaseId"] == ""
    assert answer["messages"][0]["leaseId"] == ""


async def test_auto_ack_leaves_the_partition_free(driver):
    await driver.push("a", "b")
    await driver.pop(autoAck=True, batch=1)
    assert await driver.pop_ids() == ["b"]


async def test_auto_ack_respects_a_lease(driver):
    await driver.push("a")
    await driver.pop()
    assert await driver.pop(autoAck=True) == []


async def test_auto_ack_is_always_attempt_one(driver):
    await driver.push("a")
    await driver.ack((await driver.pop())[0], "retry")
    (message,) = await driver.pop(autoAck=True)
    assert message["deliveryAttempt"] == 1


# Where a group starts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [None, "new", "new-only", "new_only", "newonly", "NEW", "New-Only"])
async def test_a_new_group_gets_only_what_is_pushed_after_its_first_pop(driver, mode):
    query = {"consumerGroup": "g"} | ({} if mode is None else {"subscriptionMode": mode})
    await driver.push("a")
    assert await driver.pop(**query) == []
    await driver.push("b")
    assert await driver.pop_ids(**query) == ["b"]


@pytest.mark.parametrize("mode", ["all", "earliest", "ALL"])
async def test_every_other_mode_starts_at_the_oldest(driver, mode):
    await driver.push("a")
    assert await driver.pop_ids(consumerGroup="g", subscriptionMode=mode) == ["a"]


async def test_queue_mode_starts_at_the_oldest_whatever_is_asked(driver):
    await driver.push("a")
    assert await driver.pop_ids(subscriptionMode="new", subscriptionFrom="now") == ["a"]


async def test_the_start_is_decided_once(driver):
    await driver.push("a")
    await driver.pop(consumerGroup="g", subscriptionMode="new")
    assert await driver.pop(consumerGroup="g", subscriptionMode="all") == []


async def test_a_start_at_all_is_not_undone_by_new(driver):
    await driver.push("a")
    await driver.pop(consumerGroup="g", subscriptionMode="all", leaseSeconds=1)
    driver.clock.advance(1)
    assert await driver.pop_ids(consumerGroup="g", subscriptionMode="new") == ["a"]


async def test_the_first_pop_decides_for_every_partition_of_the_queue(driver):
    await spread(driver, 2)
    await driver.pop(consumerGroup="g")
    assert await driver.pop(consumerGroup="g", partitions=0, subscriptionMode="all") == []


async def test_a_later_partition_is_read_from_its_first_message(driver):
    await driver.push("old")
    await driver.pop(consumerGroup="g")
    await driver.push("a", "b", partition="later")
    assert await driver.pop_ids(consumerGroup="g") == ["a", "b"]


async def test_a_start_on_a_queue_that_does_not_exist_is_remembered(driver):
    await driver.pop(consumerGroup="g")
    await driver.push("a")
    assert await driver.pop_ids(consumerGroup="g") == ["a"]


async def test_a_start_on_a_configured_empty_queue_is_remembered(driver):
    await driver.configure()
    await driver.pop(consumerGroup="g")
    await driver.push("a")
    assert await driver.pop_ids(consumerGroup="g") == ["a"]


async def test_a_named_first_pop_decides_for_the_whole_queue(driver):
    await spread(driver, 2)
    await driver.pop("q", "p0", consumerGroup="g")
    assert await driver.pop("q", "p1", consumerGroup="g", subscriptionMode="all") == []


async def test_a_named_first_pop_of_an_absent_partition_decides_too(driver):
    await driver.push("old")
    await driver.pop("q", "later", consumerGroup="g")
    await driver.push("a", partition="later")
    assert await driver.pop_ids("q", "later", consumerGroup="g") == ["a"]


async def test_a_start_is_decided_per_queue(driver):
    await driver.push("a", queue="r")
    await driver.pop("q", consumerGroup="g")
    assert await driver.pop_ids("r", consumerGroup="g", subscriptionMode="all") == ["a"]


def at(driver, seconds=0):
    return datetime.fromtimestamp(driver.clock.now_ms() / 1000 + seconds, UTC).isoformat()


async def test_a_start_at_a_time_takes_what_was_pushed_from_then_on(driver):
    await driver.push("a")
    driver.clock.advance(10)
    moment = at(driver)
    await driver.push("b")
    driver.clock.advance(10)
    assert await driver.pop_ids(consumerGroup="g", subscriptionFrom=moment) == ["b"]


async def test_a_start_at_a_time_wins_over_the_mode(driver):
    await driver.push("a")
    driver.clock.advance(10)
    assert await driver.pop(consumerGroup="g", subscriptionMode="all", subscriptionFrom=at(driver)) == []


async def test_a_start_now_is_the_tip(driver):
    await driver.push("a")
    assert await driver.pop(consumerGroup="g", subscriptionMode="all", subscriptionFrom="now") == []
    await driver.push("b")
    assert await driver.pop_ids(consumerGroup="g") == ["b"]


async def test_a_start_in_the_future_leaves_out_what_is_pushed_before(driver):
    await driver.pop(consumerGroup="g", subscriptionFrom=at(driver, 60))
    await driver.push("a")
    assert await driver.pop(consumerGroup="g") == []
    driver.clock.advance(60)
    await driver.push("b")
    assert await driver.pop_ids(consumerGroup="g") == ["b"]


async def test_a_start_at_a_time_holds_for_acks_without_a_pop_in_between(driver):
    await driver.push("a")
    driver.clock.advance(10)
    await driver.push("b")
    (message,) = await driver.pop(consumerGroup="g", subscriptionFrom=at(driver))
    assert (await driver.ack({**message, "transactionId": "a"}, lease=None))["noop"] is True


@pytest.mark.parametrize("moment", ["2023-11-14T22:13:20Z", "2023-11-14T22:13:20", "2023-11-14T23:13:20+01:00"])
async def test_a_time_without_a_zone_is_utc(driver, moment):
    await driver.push("a")
    assert await driver.pop_ids(consumerGroup="g", subscriptionFrom=moment) == ["a"]


# Delivery attempts ------------------------------------------------------------------------------------------------


async def attempts(driver, **query):
    return [message["deliveryAttempt"] for message in await driver.pop(leaseSeconds=1, **query)]


async def test_the_first_delivery_is_attempt_one(driver):
    await driver.push("a", "b")
    assert await attempts(driver) == [1, 1]


async def test_each_delivery_from_the_same_offset_counts(driver):
    await driver.push("a")
    seen = []
    for _ in range(3):
        seen += await attempts(driver)
        driver.clock.advance(1)
    assert seen == [1, 2, 3]


async def test_a_nack_counts_too(driver):
    await driver.push("a")
    (message,) = await driver.pop()
    await driver.ack(message, "failed")
    assert await attempts(driver) == [2]


async def test_a_start_inside_the_last_batch_counts_on(driver):
    await driver.push("a", "b")
    (first, _) = await driver.pop(leaseSeconds=1)
    await driver.ack(first)
    driver.clock.advance(1)
    assert await attempts(driver) == [2]


async def test_a_start_after_a_completed_batch_is_attempt_one(driver):
    await driver.push("a", "b")
    await attempts(driver, batch=1)
    driver.clock.advance(1)
    (message,) = await driver.pop(batch=1)
    await driver.ack(message)
    assert await attempts(driver) == [1]


async def test_attempts_survive_a_restart(driver):
    await driver.push("a")
    await attempts(driver)
    driver.clock.advance(1)
    driver.kill_and_restart()
    assert await attempts(driver) == [2]


# Parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        "batch=x",
        "batch=",
        "batch=1.5",
        "batch=1_0",
        "batch=99999999999999999999",
        "batch=%C2%B2",
        "partitions=many",
        "leaseSeconds=1s",
        "timeout=soon",
        "wait=TRUE",
        "wait=1",
        "wait=",
        "wait",
        "autoAck=yes",
        "conflation=x",
        "conflation=true",
        "batch=1&batch=1",
        "consumerGroup=a&consumerGroup=b",
        "subscriptionFrom=yesterday",
        "subscriptionFrom=9999-99-99",
        "consumerGroup=%ff",
        "consumerGroup=a%00b",
        "consumerGroup=" + "x" * 256,
    ],
)
async def test_a_query_that_does_not_parse_is_400_and_changes_nothing(driver, query):
    await driver.push("a")
    assert (await driver.call("GET", "/api/v1/pop/queue/q", query=query)).status == 400
    assert await driver.pop_ids() == ["a"]


@pytest.mark.parametrize(
    "query", ["", "autopilot=true", "x=1&x=2", "&&", "conflation=false", "wait=false", "batch=%34"]
)
async def test_unknown_parameters_are_ignored(driver, query):
    await driver.push("a")
    assert (await driver.call("GET", "/api/v1/pop/queue/q", query=query)).status == 200


@pytest.mark.parametrize("path", ["%00", "%ff", "x" * 256])
async def test_a_queue_that_cannot_exist_is_400(driver, path):
    assert (await driver.call("GET", f"/api/v1/pop/queue/{path}")).status == 400


async def test_a_group_name_holds_any_character(driver):
    await driver.push("a")
    (message,) = await driver.pop(consumerGroup="ü/ &=+👩", subscriptionMode="all")
    assert message["consumerGroup"] == "ü/ &=+👩"


async def test_an_encoded_slash_stays_inside_its_name(driver):
    await driver.push("a", queue="q/partition/p")
    assert await driver.pop_ids("q/partition/p") == ["a"]
    assert await driver.pop("q", "p") == []


# Delays -----------------------------------------------------------------------------------------------------------


async def test_a_delayed_message_is_not_delivered_early(driver):
    await driver.configure(delayedProcessing=5)
    await driver.push("a")
    driver.clock.advance(4.999)
    assert await driver.pop() == []
    driver.clock.advance(0.001)
    assert await driver.pop_ids() == ["a"]


async def test_a_delayed_message_holds_nothing_before_it(driver):
    await driver.configure(delayedProcessing=5)
    await driver.push("a")
    driver.clock.advance(5)
    await driver.push("b")
    assert await driver.pop_ids() == ["a"]


async def test_the_delay_is_the_one_configured_at_the_pop(driver):
    await driver.push("a")
    await driver.configure(delayedProcessing=5)
    assert await driver.pop() == []


async def test_a_delayed_partition_hides_no_other(driver):
    await driver.configure(delayedProcessing=5)
    await driver.push("a", partition="p")
    driver.clock.advance(5)
    await driver.push("b", partition="earlier-by-name")
    assert await driver.pop_ids(partitions=0) == ["a"]


async def test_a_window_buffer_holds_a_partition_until_it_is_quiet(driver):
    await driver.configure(windowBuffer=5)
    await driver.push("a")
    driver.clock.advance(4)
    await driver.push("b")
    driver.clock.advance(4)
    assert await driver.pop() == []
    driver.clock.advance(1)
    assert await driver.pop_ids() == ["a", "b"]


# Seeded faults need only one method -------------------------------------------------------------------------------


async def test_an_engine_with_one_method_overridden_behaves_so(driver_type):
    class Canary(Engine):
        def read_run(self, lane, first, limit):
            return super().read_run(lane, 0, 1)

    driver = driver_type(Canary)
    await driver.push("a", "b")
    await driver.ack((await driver.pop())[0])
    assert await driver.pop_ids() == ["a"]
