"""The edges of the reference broker: its storage, its checkpoints, its kill and restart, its replay."""

import asyncio
import random

import pytest

from reference_broker import Engine, Storage, StorageError, create_app

# Checkpoints ------------------------------------------------------------------------------------------------------


@pytest.fixture
def passed(driver_type):
    names = []

    async def checkpoint(name):
        names.append(name)
        await asyncio.sleep(0)

    driver = driver_type(checkpoint=checkpoint)
    driver.passed = names
    return driver


async def test_a_push_passes_checkpoints_outside_its_transaction(passed):
    await passed.push("a")
    assert passed.passed == ["push.begin", "push.answer"]


async def test_a_pop_passes_checkpoints_outside_its_transaction(passed):
    await passed.pop()
    assert passed.passed == ["pop.begin", "pop.committed", "pop.answer"]


async def test_an_ack_passes_checkpoints_outside_its_transaction(passed):
    await passed.push("a")
    (message,) = await passed.pop()
    passed.passed.clear()
    await passed.ack(message)
    assert passed.passed == ["ack.begin", "ack.answer"]


async def test_no_transaction_is_open_at_a_checkpoint(driver_type):
    open_ = []

    async def checkpoint(name):
        open_.append(driver.storage.connection.in_transaction)

    driver = driver_type(checkpoint=checkpoint)
    await driver.push("a", "b")
    messages = await driver.pop(leaseSeconds=5)
    await driver.ack(messages[0])
    await driver.call("POST", f"/api/v1/lease/{messages[0]['leaseId']}/extend")
    await driver.configure(leaseTime=5)
    await driver.call("DELETE", "/api/v1/consumer-groups/g")
    await driver.call("DELETE", "/api/v1/resources/queues/q")
    assert open_
    assert not any(open_)


async def test_concurrent_pops_of_a_group_never_share_a_partition(driver_type):
    source = random.Random(3)

    async def checkpoint(name):
        for _ in range(source.randrange(4)):
            await asyncio.sleep(0)

    driver = driver_type(checkpoint=checkpoint)
    await driver.push("a", "b")
    for _ in range(30):
        answers = await asyncio.gather(*(driver.pop(leaseSeconds=1) for _ in range(4)))
        assert [len(answer) for answer in answers if answer] == [2]
        driver.clock.advance(1)


async def test_concurrent_pushes_leave_no_gap(driver_type):
    source = random.Random(3)

    async def checkpoint(name):
        await asyncio.sleep(source.random() / 1000)

    driver = driver_type(checkpoint=checkpoint)
    await asyncio.gather(*(driver.push(f"m{number}", f"n{number}") for number in range(20)))
    assert [message["offset"] for message in await driver.pop()] == list(range(40))


# Storage faults ---------------------------------------------------------------------------------------------------


async def test_a_refused_push_says_failed_and_stores_nothing(driver):
    driver.storage.refuse_writes(1)
    pushed = await driver.push("a", "b")
    assert [item["status"] for item in pushed] == ["failed", "failed"]
    assert "storage" in pushed[0]["error"]
    assert await driver.pop() == []


async def test_a_push_after_the_fault_is_stored(driver):
    driver.storage.refuse_writes(1)
    await driver.push("a")
    (again,) = await driver.push("a")
    assert (again["status"], again["offset"]) == ("queued", 0)


async def test_a_refused_pop_is_500_and_leases_nothing(driver):
    await driver.push("a")
    driver.storage.refuse_writes(1)
    assert (await driver.pop_answer()).status == 500
    assert await driver.pop_ids() == ["a"]


async def test_a_refused_ack_is_unsuccessful_and_moves_nothing(driver):
    await driver.push("a")
    (message,) = await driver.pop(leaseSeconds=1)
    driver.storage.refuse_writes(1)
    result = await driver.ack(message)
    assert (result["success"], "storage" in result["error"]) == (False, True)
    driver.clock.advance(1)
    assert await driver.pop_ids() == ["a"]


async def test_a_transaction_that_changes_nothing_uses_no_fault_up(driver):
    driver.storage.refuse_writes(1)
    assert await driver.pop() == []
    assert (await driver.push("a"))[0]["status"] == "failed"


async def test_a_full_disk_is_a_refused_push(driver):
    (pages,) = driver.storage.execute("PRAGMA page_count").fetchone()
    driver.storage.execute(f"PRAGMA max_page_count = {pages}").fetchone()
    (item,) = await driver.push("x" * 60_000)
    assert item["status"] == "failed"


# Kill and restart -------------------------------------------------------------------------------------------------


async def test_an_open_transaction_is_undone_by_a_restart(driver):
    driver.storage.begin()
    driver.storage.execute("INSERT INTO groups (queue, name) VALUES ('q', 'g')")
    driver.kill_and_restart()
    assert driver.storage.execute("SELECT count(*) FROM groups").fetchone() == (0,)


async def test_an_answered_push_survives_a_restart(driver):
    await driver.push("a")
    driver.kill_and_restart()
    assert await driver.pop_ids() == ["a"]


async def test_duplicates_are_known_after_a_restart(driver):
    (first,) = await driver.push("a")
    driver.kill_and_restart()
    (second,) = await driver.push("a")
    assert (second["status"], second["message_id"]) == ("duplicate", first["message_id"])


async def test_a_start_is_known_after_a_restart(driver):
    await driver.pop(consumerGroup="g")
    driver.kill_and_restart()
    await driver.push("a")
    assert await driver.pop_ids(consumerGroup="g") == ["a"]


async def test_partitions_take_turns_over_a_restart(driver):
    await driver.push("a", partition="p")
    await driver.push("b", partition="r")
    await driver.ack((await driver.pop())[0], "retry")
    driver.kill_and_restart()
    assert await driver.pop_ids() == ["b"]


async def test_a_data_directory_is_made_and_kept(tmp_path):
    place = tmp_path / "new" / "data"
    for _ in range(2):
        broker = create_app(place)
        await broker.engine.configure("q", "n", None, {})
        broker.close()
    broker = create_app(str(place))
    assert broker.storage.execute("SELECT namespace FROM queues").fetchall() == [("n",)]
    broker.close()


async def test_the_storage_on_disk_is_durable(tmp_path):
    storage = Storage.open(tmp_path)
    assert storage.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert storage.execute("PRAGMA synchronous").fetchone() == (2,)
    storage.close()


def test_an_unusable_directory_is_one_sentence(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StorageError, match=r"cannot use '.*file' as the data directory"):
        create_app(file)


def test_a_file_that_is_no_database_is_one_sentence(tmp_path):
    (tmp_path / "broker.sqlite3").write_bytes(b"not a database, by any reading of the word" * 99)
    with pytest.raises(StorageError, match="not a database"):
        Storage.open(tmp_path)


def test_a_storage_of_another_version_is_refused(tmp_path):
    storage = Storage.open(tmp_path)
    storage.execute("PRAGMA user_version = 9")
    storage.close()
    with pytest.raises(StorageError, match="version 9"):
        Storage.open(tmp_path)


def test_a_storage_that_was_handed_in_stays_open():
    storage = Storage.in_memory()
    create_app(storage).close()
    assert storage.is_open
    storage.close()
    assert not storage.is_open


@pytest.mark.parametrize("count", [0, 2])
def test_exactly_one_place_for_the_data_is_needed(count):
    storage = Storage.in_memory()
    arguments = {"data": storage, "storage": storage} if count else {}
    with pytest.raises(TypeError):
        create_app(**arguments)


# Replay -----------------------------------------------------------------------------------------------------------


async def test_the_same_seed_and_clock_give_the_same_answers(driver_type):
    async def play():
        driver = driver_type()
        pushed = await driver.push("a", "b")
        messages = await driver.pop()
        return pushed, messages, await driver.ack(messages[1], "dlq"), await driver.dead_letters()

    assert await play() == await play()


async def test_without_a_clock_the_wall_clock_counts():
    engine = Engine(Storage.in_memory())
    assert abs(engine.now_ms() - __import__("time").time() * 1000) < 5000
