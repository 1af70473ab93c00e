"""Seeking in the reference broker (contract 7)."""

import asyncio

import pytest


async def seek(driver, group="G", partition=None, *, status=200, **body):
    path = f"/api/v1/consumer-groups/{group}/queues/q"
    path += "" if partition is None else f"/partitions/{partition}"
    answer = await driver.call("POST", f"{path}/seek", body)
    assert answer.status == status, answer.body
    return answer.json


def ids(messages):
    return [message["transactionId"] for message in messages]


async def pop(driver, group="G", **query):
    return await driver.pop(consumerGroup=group, subscriptionMode="all", **query)


BACK = {"timestamp": "1970-01-01T00:00:00Z"}


async def test_a_seek_back_gives_everything_again(driver):
    await driver.push("a", "b")
    assert ids(await pop(driver, autoAck=True)) == ["a", "b"]
    assert (await seek(driver, **BACK))["partitions"] == 1
    assert ids(await pop(driver)) == ["a", "b"]


async def test_a_seek_to_the_end_skips_what_is_there(driver):
    await driver.push("a")
    await seek(driver, toEnd=True)
    assert await pop(driver) == []
    await driver.push("b")
    assert ids(await pop(driver)) == ["b"]


async def test_a_seek_to_a_time_gives_what_was_pushed_from_then_on(driver):
    await driver.push("a")
    driver.clock.advance(10)
    await driver.push("b")
    await pop(driver, autoAck=True)
    await seek(driver, timestamp="2023-11-14T22:13:25Z")  # 5 s after the first push
    assert ids(await pop(driver)) == ["b"]


async def test_a_seek_ends_the_lease(driver):
    await driver.push("a")
    held = await pop(driver)
    await seek(driver, **BACK)
    assert ids(await pop(driver)) == ["a"]
    refused = await driver.ack(held[0])
    assert (refused["success"], refused["error"]) == (False, "invalid or expired lease")


async def test_a_seek_clears_the_failures(driver):
    await driver.configure(retryLimit=1)
    await driver.push("a")
    for _ in range(3):
        (message,) = await pop(driver)
        assert (await driver.ack(message, "failed"))["dlq"] is False
        await seek(driver, **BACK)


async def test_a_seek_of_one_partition_leaves_the_others(driver):
    await driver.push("a", partition="p")
    await driver.push("b", partition="r")
    await pop(driver, autoAck=True, partitions=0)
    await seek(driver, partition="r", **BACK)
    assert ids(await pop(driver, partitions=0)) == ["b"]


async def test_a_seek_leaves_the_other_groups(driver):
    await driver.push("a")
    await pop(driver, group="H", autoAck=True)
    await seek(driver, **BACK)
    assert await pop(driver, group="H") == []


async def test_a_seek_is_the_start_of_a_group_that_never_popped(driver):
    await driver.push("a")
    await seek(driver, **BACK)
    assert ids(await driver.pop(consumerGroup="G", subscriptionMode="new")) == ["a"]


async def test_a_seek_wakes_a_parked_pop(driver):
    driver.clock.run()
    await driver.push("a")
    await pop(driver, autoAck=True)
    parked = asyncio.create_task(pop(driver, wait=True, timeout=5000))
    await asyncio.sleep(0.01)
    await seek(driver, **BACK)
    assert ids(await asyncio.wait_for(parked, 2)) == ["a"]


async def test_a_seek_of_an_unknown_queue_or_partition_is_404(driver):
    await seek(driver, status=404, **BACK)
    await driver.push("a")
    await seek(driver, partition="nowhere", status=404, **BACK)


@pytest.mark.parametrize("body", [{}, {"toEnd": False}, {"timestamp": ""}, {"timestamp": "soon"}, {"timestamp": 5}])
async def test_a_seek_to_nowhere_is_400_and_moves_nothing(driver, body):
    await driver.push("a")
    await pop(driver, autoAck=True)
    await seek(driver, status=400, **body)
    assert await pop(driver) == []
