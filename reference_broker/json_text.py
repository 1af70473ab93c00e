"""JSON as text: cuts values out of a document without interpreting them.

The fast parser of the broker refuses a few legal documents (an escape that is half of a surrogate pair, nesting
beyond a thousand levels). They are read here, slowly and without recursion, so that any legal value can be a payload.
"""

from __future__ import annotations

import json
import re

_SPACE = re.compile(r"[ \t\n\r]*")
_STRING = r'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*"'
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_TOKEN = re.compile(rf"[ \t\n\r]*([{{}}\[\],:]|{_STRING}|{_NUMBER}|true|false|null)")

_CLOSERS = {"{": "}", "[": "]"}

Span = tuple[int, int]


class NotJson(ValueError):
    """The text is not JSON, or not of the expected shape."""


def document(text: str) -> Span:
    """The span of the one value that the text consists of. Raises `NotJson`."""
    start, end = _value(text, 0)
    rest = _SPACE.match(text, end)
    if rest is None or rest.end() != len(text):
        raise NotJson(f"unexpected text at character {end}")
    return start, end


def members(text: str, span: Span) -> dict[str, Span]:
    """The spans of an object's values by key; of a repeated key the last. Raises `NotJson` for another value."""
    if text[span[0]] != "{":
        raise NotJson(f"expected an object at character {span[0]}")
    found: dict[str, Span] = {}
    position = span[0] + 1
    token, _, end = _next(text, position)
    while token != "}":
        key = json.loads(token)
        _, _, position = _next(text, end)
        value = _value(text, position)
        found[key] = value
        token, _, end = _next(text, value[1])
        if token == ",":
            token, _, end = _next(text, end)
    return found


def elements(text: str, span: Span) -> list[Span]:
    """The spans of an array's values. Raises `NotJson` for another kind of value."""
    if text[span[0]] != "[":
        raise NotJson(f"expected an array at character {span[0]}")
    found: list[Span] = []
    position = span[0] + 1
    token, _, end = _next(text, position)
    while token != "]":
        value = _value(text, position)
        found.append(value)
        token, _, end = _next(text, value[1])
        position = end
    return found


def string(text: str, span: Span) -> str:
    """The string at a span. Raises `NotJson` for another kind of value and for half a surrogate pair."""
    if text[span[0]] != '"':
        raise NotJson(f"expected a string at character {span[0]}")
    value: str = json.loads(text[span[0] : span[1]])
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotJson(f"half a surrogate pair in the string at character {span[0]}") from None
    return value


def _next(text: str, position: int) -> tuple[str, int, int]:
    match = _TOKEN.match(text, position)
    if match is None:
        raise NotJson(f"not JSON at character {position}")
    return match[1], match.start(1), match.end()


def _value(text: str, position: int) -> Span:
    """The span of the value that begins at or after `position`, checked to its end.

    `open_` holds the brackets that are open, so depth costs memory and no recursion.
    """
    token, start, end = _next(text, position)
    open_: list[str] = []
    while True:
        if token in _CLOSERS:
            opener = token
            token, _, after = _next(text, end)
            if token == _CLOSERS[opener]:
                end = after
            else:
                open_.append(opener)
                token, end = _first_inside(text, opener, token, end, after)
                continue
        elif token in ("}", "]", ",", ":"):
            raise NotJson(f"expected a value before character {end}")
        # A value is complete: close what ends with it, or go on to its sibling.
        while open_:
            token, _, end = _next(text, end)
            if token == _CLOSERS[open_[-1]]:
                open_.pop()
            elif token == ",":
                token, end = _sibling(text, open_[-1], end)
                break
            else:
                raise NotJson(f"expected ',' or {_CLOSERS[open_[-1]]!r} before character {end}")
        else:
            return start, end


def _first_inside(text: str, opener: str, token: str, before: int, after: int) -> tuple[str, int]:
    """The first token of the first value of an object or array, and where it ends."""
    if opener == "[":
        return token, after
    return _sibling(text, opener, before)


def _sibling(text: str, opener: str, position: int) -> tuple[str, int]:
    """The first token of the next value, after its key if it stands in an object."""
    token, _, end = _next(text, position)
    if opener == "[":
        return token, end
    if token[0] != '"':
        raise NotJson(f"expected a key before character {end}")
    colon, _, end = _next(text, end)
    if colon != ":":
        raise NotJson(f"expected ':' before character {end}")
    token, _, end = _next(text, end)
    return token, end
