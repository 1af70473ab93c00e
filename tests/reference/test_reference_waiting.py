"""Long polls of the reference broker: who waits, who is woken, who gets it (contract 3 and 9)."""

import asyncio
import time

import pytest

SOON_S = 0.15  # generous for a loaded machine; a wake-up itself takes well under a millisecond


async def parked(driver, queue="q", partition=None, **query):
    """A pop that has parked already."""
    task = asyncio.create_task(driver.pop_ids(queue, partition, wait=True, **{"timeout": 5000, **query}))
    await turns()
    assert not task.done()
    return task


async def turns():
    for _ in range(10):
        await asyncio.sleep(0)


async def soon(task):
    return await asyncio.wait_for(task, SOON_S)


async def still_waits(task):
    await turns()
    waits = not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return waits


async def elapsed(awaitable):
    begun = time.monotonic()
    await awaitable
    return time.monotonic() - begun


# Answering --------------------------------------------------------------------------------------------------------


async def test_a_message_that_is_there_is_answered_at_once(driver):
    await driver.push("a")
    assert await soon(asyncio.create_task(driver.pop_ids(wait=True))) == ["a"]


async def test_nothing_is_204_at_the_timeout(driver):
    took = await elapsed(driver.pop(wait=True, timeout=50))
    assert 0.049 <= took < 0.05 + SOON_S


@pytest.mark.parametrize("timeout", [0, -1])
async def test_a_timeout_of_zero_or_less_answers_at_once(driver, timeout):
    assert await elapsed(driver.pop(wait=True, timeout=timeout)) < SOON_S


async def test_without_wait_the_timeout_means_nothing(driver):
    assert await elapsed(driver.pop(wait=False, timeout=5000)) < SOON_S


async def test_the_timeout_holds_while_everything_is_leased(driver):
    await driver.push("a")
    await driver.pop(leaseSeconds=30)
    took = await elapsed(driver.pop(wait=True, timeout=50))
    assert 0.049 <= took < 0.05 + SOON_S


# Wake-ups ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", [None, "p"])
async def test_a_push_wakes(driver, partition):
    task = await parked(driver, partition=partition)
    await driver.push("a")
    assert await soon(task) == ["a"]


async def test_a_push_to_the_default_partition_wakes(driver):
    task = await parked(driver, partition="Default")
    await driver.push("a", partition=None)
    assert await soon(task) == ["a"]


async def test_a_push_to_another_partition_does_not_answer_a_named_pop(driver):
    task = await parked(driver, partition="p")
    await driver.push("a", partition="r")
    assert await still_waits(task)


async def test_a_push_to_another_queue_does_not_answer(driver):
    task = await parked(driver)
    await driver.push("a", queue="r")
    assert await still_waits(task)


@pytest.mark.parametrize("partition", [None, "p"])
async def test_a_lease_that_runs_out_wakes(driver, partition):
    await driver.push("a")
    await driver.pop(leaseSeconds=1)
    driver.clock.advance(0.95)
    driver.clock.run()
    task = await parked(driver, partition=partition)
    assert await soon(task) == ["a"]


async def test_the_earliest_of_several_leases_wakes(driver):
    await driver.push("a", partition="p")
    await driver.push("b", partition="r")
    await driver.pop("q", "p", leaseSeconds=30)
    await driver.pop("q", "r", leaseSeconds=1)
    driver.clock.advance(0.95)
    driver.clock.run()
    assert await soon(await parked(driver)) == ["b"]


async def test_an_extended_lease_keeps_a_parked_pop_waiting(driver):
    await driver.push("a")
    (message,) = await driver.pop(leaseSeconds=1)
    driver.clock.advance(0.98)
    driver.clock.run()
    task = await parked(driver)
    await driver.call("POST", f"/api/v1/lease/{message['leaseId']}/extend", {"seconds": 30})
    await asyncio.sleep(0.05)
    assert await still_waits(task)


@pytest.mark.parametrize("status", ["failed", "retry"])
@pytest.mark.parametrize("partition", [None, "p"])
async def test_a_nack_wakes(driver, status, partition):
    await driver.push("a")
    (message,) = await driver.pop()
    task = await parked(driver, partition=partition)
    await driver.ack(message, status)
    assert await soon(task) == ["a"]


async def test_a_completed_batch_wakes_for_what_follows_it(driver):
    await driver.push("a", "b")
    (message,) = await driver.pop(batch=1)
    task = await parked(driver)
    await driver.ack(message)
    assert await soon(task) == ["b"]


async def test_a_dead_letter_wakes_for_what_follows_it(driver):
    await driver.push("a", "b")
    (message,) = await driver.pop(batch=1)
    task = await parked(driver)
    await driver.ack(message, "dlq")
    assert await soon(task) == ["b"]


async def test_a_forgotten_group_wakes(driver):
    await driver.push("a")
    (message,) = await driver.pop()
    await driver.ack(message)
    task = await parked(driver)
    await driver.call("DELETE", "/api/v1/consumer-groups/__QUEUE_MODE__")
    assert await soon(task) == ["a"]


async def test_a_delay_that_runs_out_wakes(driver):
    await driver.configure(delayedProcessing=1)
    await driver.push("a")
    driver.clock.advance(0.95)
    driver.clock.run()
    assert await soon(await parked(driver)) == ["a"]


async def test_a_quiet_time_that_runs_out_wakes(driver):
    await driver.configure(windowBuffer=1)
    await driver.push("a")
    driver.clock.advance(0.95)
    driver.clock.run()
    assert await soon(await parked(driver)) == ["a"]


async def test_a_shorter_delay_wakes(driver):
    await driver.configure(delayedProcessing=30)
    await driver.push("a")
    task = await parked(driver)
    await driver.configure(delayedProcessing=0)
    assert await soon(task) == ["a"]


async def test_a_partition_behind_a_lease_delays_no_other(driver):
    await driver.push("a", partition="stuck")
    await driver.pop()
    task = await parked(driver)
    await driver.push("b", partition="free")
    assert await soon(task) == ["b"]


# Starts -----------------------------------------------------------------------------------------------------------


async def test_a_parked_new_group_gets_the_message_that_wakes_it(driver):
    await driver.push("old")
    task = await parked(driver, consumerGroup="g")
    await driver.push("a")
    assert await soon(task) == ["a"]


async def test_a_parked_new_group_of_an_absent_queue_gets_its_first_message(driver):
    task = await parked(driver, consumerGroup="g")
    await driver.push("a")
    assert await soon(task) == ["a"]


async def test_a_parked_group_that_is_forgotten_starts_anew_at_once(driver):
    await driver.push("old")
    task = await parked(driver, consumerGroup="g")
    await driver.call("DELETE", "/api/v1/consumer-groups/g")
    await driver.push("a")
    assert await soon(task) == ["a"]


async def test_a_parked_group_of_a_deleted_queue_gets_the_first_message_of_the_next(driver):
    await driver.push("old")
    task = await parked(driver, consumerGroup="g")
    await driver.call("DELETE", "/api/v1/resources/queues/q")
    await driver.push("a")
    assert await soon(task) == ["a"]


# Who gets it ------------------------------------------------------------------------------------------------------


async def test_the_earliest_parked_pop_is_served_first(driver):
    tasks = [await parked(driver) for _ in range(3)]
    for index, task in enumerate(tasks):
        await driver.push(f"m{index}", partition=f"p{index}")
        assert await soon(task) == [f"m{index}"]


async def test_a_pop_that_was_not_served_keeps_its_place(driver):
    first = await parked(driver, partition="p")
    second = await parked(driver)
    await driver.push("x", partition="r")
    assert await soon(second) == ["x"]
    third = await parked(driver)
    await driver.push("y", partition="p")
    assert await soon(first) == ["y"]
    assert await still_waits(third)


async def test_a_newcomer_does_not_overtake_a_woken_pop(driver):
    task = await parked(driver)
    _, newcomer = await asyncio.gather(driver.push("a"), driver.pop_ids())
    assert newcomer == []
    assert await soon(task) == ["a"]


async def test_one_message_serves_one_parked_pop_of_a_group(driver):
    tasks = [await parked(driver) for _ in range(3)]
    await driver.push("a")
    await turns()
    assert [task.done() for task in tasks] == [True, False, False]
    assert await still_waits(tasks[1])
    assert await still_waits(tasks[2])


async def test_one_push_serves_a_parked_pop_of_each_group(driver):
    tasks = [await parked(driver, consumerGroup=group) for group in ("g", "h")]
    await driver.push("a")
    assert [await soon(task) for task in tasks] == [["a"], ["a"]]


async def test_as_many_parked_pops_are_served_as_partitions_have_something(driver):
    tasks = [await parked(driver) for _ in range(2)]
    items = [{"queue": "q", "partition": name, "payload": 1, "transactionId": name} for name in ("p", "r")]
    await driver.call("POST", "/api/v1/push", {"items": items})
    assert sorted([*await soon(tasks[0]), *await soon(tasks[1])]) == ["p", "r"]


# Clients that leave -----------------------------------------------------------------------------------------------


async def test_a_client_that_left_claims_nothing(driver):
    leave = asyncio.Event()
    task = await parked(driver, leave=leave)
    leave.set()
    await soon(task)
    await driver.push("a")
    assert await driver.pop_ids() == ["a"]


async def test_a_client_that_leaves_in_the_moment_of_the_push_claims_nothing(driver):
    leave = asyncio.Event()
    task = await parked(driver, leave=leave)
    push = asyncio.create_task(driver.push("a"))
    leave.set()
    await push
    await soon(task)
    assert await driver.pop_ids() == ["a"]


async def test_a_cancelled_pop_claims_nothing(driver):
    task = await parked(driver)
    task.cancel()
    await driver.push("a")
    await asyncio.gather(task, return_exceptions=True)
    assert await driver.pop_ids() == ["a"]


async def test_nobody_watches_a_client_whose_pop_is_over(driver):
    before = asyncio.all_tasks()
    task = await parked(driver)
    await driver.push("a")
    await soon(task)
    await turns()
    assert asyncio.all_tasks() == before


async def test_stopping_answers_parked_pops(driver):
    task = await parked(driver)
    driver.broker.close()
    assert await soon(task) == []
