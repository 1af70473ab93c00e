"""Leases of the reference broker (contract 4)."""

import pytest


async def extend(driver, lease_id, seconds=None):
    body = None if seconds is None else {"seconds": seconds}
    answer = await driver.call("POST", f"/api/v1/lease/{lease_id}/extend", body)
    assert answer.status == 200
    return answer.json


async def test_a_lease_lasts_exactly_its_seconds(driver):
    await driver.push("a")
    await driver.pop(leaseSeconds=2)
    driver.clock.advance(1.999)
    assert await driver.pop() == []
    driver.clock.advance(0.001)
    assert await driver.pop_ids() == ["a"]


async def test_a_queue_made_by_a_push_leases_for_60_s(driver):
    await driver.push("a")
    await driver.pop()
    driver.clock.advance(59.999)
    assert await driver.pop() == []
    driver.clock.advance(0.001)
    assert await driver.pop_ids() == ["a"]


async def test_a_queue_made_by_configure_leases_for_300_s(driver):
    await driver.configure()
    await driver.push("a")
    await driver.pop()
    driver.clock.advance(299.999)
    assert await driver.pop() == []
    driver.clock.advance(0.001)
    assert await driver.pop_ids() == ["a"]


async def test_the_lease_time_of_the_queue_counts(driver):
    await driver.configure(leaseTime=3)
    await driver.push("a")
    await driver.pop()
    driver.clock.advance(3)
    assert await driver.pop_ids() == ["a"]


@pytest.mark.parametrize("seconds", [0, -1])
async def test_lease_seconds_of_zero_or_less_count_as_absent(driver, seconds):
    await driver.push("a")
    await driver.pop(leaseSeconds=seconds)
    driver.clock.advance(59)
    assert await driver.pop() == []


async def test_an_expired_batch_comes_again_from_the_cursor_in_order(driver):
    await driver.push("a", "b", "c")
    first = await driver.pop(leaseSeconds=1)
    await driver.ack(first[0])
    driver.clock.advance(1)
    assert await driver.pop_ids() == ["b", "c"]


async def test_an_expiry_spends_no_retry(driver):
    await driver.configure(retryLimit=1)
    await driver.push("a")
    for _ in range(5):
        await driver.pop(leaseSeconds=1)
        driver.clock.advance(1)
    (message,) = await driver.pop()
    assert (await driver.ack(message, "failed"))["dlq"] is False


async def test_leases_survive_a_restart(driver):
    await driver.push("a")
    await driver.pop(leaseSeconds=2)
    driver.kill_and_restart()
    assert await driver.pop() == []
    driver.clock.advance(2)
    assert await driver.pop_ids() == ["a"]


async def test_an_extension_moves_the_end(driver):
    await driver.push("a")
    (message,) = await driver.pop(leaseSeconds=2)
    assert await extend(driver, message["leaseId"], 10) == {
        "leaseId": message["leaseId"],
        "success": True,
        "renewed": 1,
        "newExpiresAt": "2023-11-14T22:13:30.000Z",
    }
    driver.clock.advance(9.999)
    assert await driver.pop() == []
    driver.clock.advance(0.001)
    assert await driver.pop_ids() == ["a"]


async def test_an_extension_never_shortens(driver):
    await driver.push("a")
    (message,) = await driver.pop(leaseSeconds=10)
    await extend(driver, message["leaseId"], 1)
    driver.clock.advance(9.999)
    assert await driver.pop() == []


async def test_an_extension_renews_every_partition_of_the_lease(driver):
    await driver.push("a", partition="p")
    await driver.push("b", partition="r")
    messages = await driver.pop(partitions=2, leaseSeconds=1)
    assert (await extend(driver, messages[0]["leaseId"], 5))["renewed"] == 2
    driver.clock.advance(4)
    assert await driver.pop(partitions=0) == []


async def test_an_extension_without_a_body_is_60_s(driver):
    await driver.push("a")
    (message,) = await driver.pop(leaseSeconds=1)
    await extend(driver, message["leaseId"])
    driver.clock.advance(59.999)
    assert await driver.pop() == []


async def test_an_expired_lease_is_not_revived(driver):
    await driver.push("a")
    (message,) = await driver.pop(leaseSeconds=1)
    driver.clock.advance(1)
    answer = await extend(driver, message["leaseId"], 5)
    assert (answer["success"], answer["renewed"]) == (False, 0)
    assert await driver.pop_ids() == ["a"]


async def test_a_released_lease_is_not_extended(driver):
    await driver.push("a")
    (message,) = await driver.pop()
    await driver.ack(message)
    assert (await extend(driver, message["leaseId"], 5))["renewed"] == 0


async def test_an_unknown_lease_is_not_extended(driver):
    assert (await extend(driver, "no-such-lease", 5))["success"] is False


@pytest.mark.parametrize("body", [b"x", b'{"seconds":"5"}', b'{"seconds":1.5}', b"[]", b'{"seconds":1e30}', b"\xff"])
async def test_a_malformed_extension_is_400_and_changes_nothing(driver, body):
    await driver.push("a")
    (message,) = await driver.pop(leaseSeconds=1)
    answer = await driver.call("POST", f"/api/v1/lease/{message['leaseId']}/extend", raw=body)
    assert answer.status == 400
    driver.clock.advance(1)
    assert await driver.pop_ids() == ["a"]
