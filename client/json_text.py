"""JSON text that the fast parser refuses: cut into pieces without interpreting them.

msgspec gives up on a whole body when one payload in it holds a lone surrogate escape, nests deeper than the
interpreter's recursion limit, or is a word such as NaN that some brokers let through. A payload is the business of its
rule, not a reason to lose the answer. So this scanner checks the structure (brackets, commas, colons) without
recursion, leaves scalars alone and hands out the raw text of members and elements. It is slow, and used only when the
fast parser failed.
"""

from __future__ import annotations

import json
import re

_TOKEN = re.compile(rb'[ \t\r\n]*("[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},:]|[^\s"\[\]{},:]+)', re.DOTALL)
_CLOSER = {ord("["): ord("]"), ord("{"): ord("}")}
_QUOTE, _COMMA, _COLON = ord('"'), ord(","), ord(":")


class TextError(ValueError):
    """Text that is cut or is not JSON in its structure."""


def members(text: bytes) -> dict[str, bytes]:
    """The members of an object, name to raw text; of a repeated name the last. Raises `TextError`."""
    found: dict[str, bytes] = {}
    at = _open(text, b"{")
    token = _token(text, at)
    while token.group(1) != b"}":
        name = scalar(token.group(1))
        if not isinstance(name, str):
            raise TextError(f"a member name at byte {token.start(1)} is no string")
        colon = _token(text, token.end())
        if colon.group(1) != b":":
            raise TextError(f"no colon at byte {colon.start(1)}")
        end = _end_of_value(text, colon.end())
        found[name] = text[colon.end() : end].strip(b" \t\r\n")
        token = _after(text, end, b"}")
    _nothing_more(text, token.end())
    return found


def elements(text: bytes) -> list[bytes]:
    """The elements of an array as raw text. Raises `TextError`."""
    found: list[bytes] = []
    at = _open(text, b"[")
    token = _token(text, at)
    at = token.start(1)
    while token.group(1) != b"]":
        end = _end_of_value(text, at)
        found.append(text[at:end].strip(b" \t\r\n"))
        token = _after(text, end, b"]")
        at = token.start(1)
    _nothing_more(text, token.end())
    return found


def scalar(text: bytes) -> object:
    """A value of little depth, lone surrogates and control characters included. Raises `TextError`."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        raise TextError(str(error)) from error


def _open(text: bytes, bracket: bytes) -> int:
    token = _token(text, 0)
    if token.group(1) != bracket:
        raise TextError(f"does not begin with {bracket.decode()}")
    return token.end()


def _after(text: bytes, at: int, closer: bytes) -> re.Match[bytes]:
    """The token after a value: the closer, or what follows a comma."""
    token = _token(text, at)
    if token.group(1) == closer:
        return token
    following = _token(text, token.end())
    if token.group(1) != b"," or following.group(1) in (b"]", b"}", b",", b":"):
        raise TextError(f"no comma or {closer.decode()} at byte {token.start(1)}")
    return following


def _nothing_more(text: bytes, at: int) -> None:
    if text[at:].strip(b" \t\r\n"):
        raise TextError(f"text after the end at byte {at}")


def _token(text: bytes, at: int) -> re.Match[bytes]:
    token = _TOKEN.match(text, at)
    if token is None:
        raise TextError(f"cut at byte {len(text)}")
    return token


def _end_of_value(text: bytes, at: int) -> int:
    """Where the value that begins at `at` ends. A stack instead of recursion: depth costs one byte a level."""
    closers = bytearray()
    state = "value"
    while True:
        token = _token(text, at)
        at = token.end()
        state = _step(token, state, closers)
        if not closers and state == "after":
            return at


def _step(token: re.Match[bytes], state: str, closers: bytearray) -> str:
    """One token of the grammar; returns what may follow: value, element, name, first-name, colon or after."""
    first = token.group(1)[0]
    if closers and first == closers[-1] and state in ("element", "first-name", "after"):
        closers.pop()
        return "after"
    if state == "after" and first == _COMMA and closers:
        return "name" if closers[-1] == ord("}") else "value"
    if state == "colon" and first == _COLON:
        return "value"
    if state in ("name", "first-name") and first == _QUOTE:
        return "colon"
    if state in ("value", "element"):
        if first in _CLOSER:
            closers.append(_CLOSER[first])
            return "first-name" if first == ord("{") else "element"
        if first not in b"]},:":
            return "after"
    raise TextError(f"unexpected {token.group(1)[:20].decode('utf-8', 'replace')!r} at byte {token.start(1)}")
