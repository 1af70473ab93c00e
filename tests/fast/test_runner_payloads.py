"""The payload table: JSON of every kind, and which messages can be told apart."""

from __future__ import annotations

import json

import pytest

from contract.payloads import BARE, ORDINARY, PAYLOADS, payload

NUMBERS = range(len(PAYLOADS))


@pytest.mark.parametrize("index", NUMBERS)
def test_every_payload_is_json(index: int) -> None:
    json.loads(payload(index, 7))


@pytest.mark.parametrize("index", NUMBERS)
def test_every_payload_can_be_sent(index: int) -> None:
    assert payload(index, 7).encode("utf-8")


@pytest.mark.parametrize("index", sorted(set(NUMBERS) - BARE))
def test_payloads_are_unique_where_they_are_not_bare(index: int) -> None:
    assert payload(index, 1) != payload(index, 2)


def test_bare_payloads_are_few() -> None:
    assert len(BARE) <= 4


def test_the_ordinary_payload_holds_its_number() -> None:
    assert payload(ORDINARY, 41) == '{"n":41}'


def test_a_number_beyond_the_table_starts_again() -> None:
    assert payload(len(PAYLOADS), 5) == payload(0, 5)


@pytest.mark.parametrize(
    "piece",
    [
        "null",
        "true",
        "1e400",
        "-0.0",
        "0.1",
        "\\u0000",
        "\\ud800",
        "\U0001f600",
        '\\"',
        "\\/",
        "transactionId",
        "[" * 200,
    ],
)
def test_the_table_holds(piece: str) -> None:
    assert any(piece in text for text in PAYLOADS)


def test_one_integer_is_beyond_64_bits() -> None:
    assert any(text.isdigit() and int(text) > 2**64 for text in PAYLOADS)


def test_one_string_is_long() -> None:
    assert max(map(len, PAYLOADS)) > 10_000
