"""What became of a call: OK, REFUSED or UNKNOWN, decided by one table.

REFUSED means "certainly no effect"; UNKNOWN means "it may have happened or not, and may still happen". In doubt it is
UNKNOWN. The client never retries, so each row speaks of exactly one request.

| what was seen                                                              | outcome                             |
|----------------------------------------------------------------------------|-------------------------------------|
| connection refused, name not found, TLS handshake failed                   | REFUSED                             |
| connect timeout, no free connection in the pool                            | REFUSED                             |
| an address that cannot be put into a request                               | REFUSED                             |
| time-out of the call, read or write timeout                                | UNKNOWN                             |
| connection broken after sending began, torn answer, protocol error         | UNKNOWN                             |
| documented 2xx, body of the documented shape                               | OK                                  |
| another 2xx, body of the documented shape                                  | OK, with an oddity                  |
| 2xx, body that is not JSON (HTML, cut, empty) or of another shape          | UNKNOWN                             |
| 2xx, results of another number than the items, indexes that do not match   | UNKNOWN                             |
| 2xx, whole body is an error or `success:false` that names storage          | UNKNOWN                             |
| 2xx, whole body is an error or `success:false` otherwise                   | REFUSED                             |
| 200 of an extend with `success:false` that does not name storage           | OK (`success` False: nothing left)  |
| 200 of a pop with an empty `messages`                                      | OK (an empty pop), with an oddity   |
| one item of a push or ack whose error names storage                        | OK, that item has `unknown` True    |
| one item of a push with a status word that nobody documented               | OK, `unknown` True, with an oddity  |
| 3xx                                                                        | UNKNOWN, not a broker's answer      |
| 408 and 499 (somebody gave up waiting)                                     | UNKNOWN                             |
| every other 4xx (400 401 403 404 405 409 413 422 429 ...)                  | REFUSED                             |
| 503 of /health with a JSON body                                            | OK (`ready` False)                  |
| 5xx                                                                        | UNKNOWN                             |

"Names storage" is `names_storage`: the text speaks of a storage, database, connection, pool, disk or time-out. A text
that only quotes such a word (a queue called "pool") is taken as UNKNOWN too, which can hide a fault but never invent
one.
"""

from __future__ import annotations

import enum
import re
from typing import Generic, TypeVar

import httpx
import msgspec

T = TypeVar("T")


class Outcome(enum.Enum):
    """The three outcomes; the values are the words of the history."""

    OK = "ok"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Call(msgspec.Struct, Generic[T], frozen=True):
    """One call and what became of it.

    `value` is there exactly when `outcome` is OK. `status` is the HTTP status, None when no answer came. `why` is a
    short reason for the other outcomes. `oddities` lists deviations in form that did not hide the result.
    """

    outcome: Outcome
    status: int | None = None
    why: str = ""
    value: T | None = None
    oddities: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True when the outcome is OK."""
        return self.outcome is Outcome.OK


_STORAGE = re.compile(
    r"\b(storage|database|db|postgres\w*|sql\w*|connections?|pool\w*|disk|i/?o error|deadlock\w*|unavailable"
    r"|time-?out|timed out)\b",
    re.IGNORECASE,
)

# Nothing of the request can have reached a broker.
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol, httpx.InvalidURL)

# What can come out of sending; anything else is a mistake of ours and stays loud.
SENDING_ERRORS = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, EOFError)

_GAVE_UP_STATUSES = frozenset({408, 499})


def names_storage(text: str | None) -> bool:
    """True when an error text speaks of the storage or its connection, so that the effect is open."""
    return text is not None and _STORAGE.search(text) is not None


def of_exception(error: Exception) -> tuple[Outcome, str]:
    """The outcome of a call that ended with one of `SENDING_ERRORS`, and a short reason."""
    outcome = Outcome.REFUSED if isinstance(error, _NEVER_SENT) else Outcome.UNKNOWN
    text = str(error)
    return outcome, f"{type(error).__name__}: {text}" if text else type(error).__name__


def of_status(status: int) -> Outcome:
    """The outcome that a status code outside 2xx says."""
    if 400 <= status < 500 and status not in _GAVE_UP_STATUSES:
        return Outcome.REFUSED
    return Outcome.UNKNOWN


def of_error_text(text: str | None) -> Outcome:
    """The outcome of a 2xx whose whole body reports an error."""
    return Outcome.UNKNOWN if names_storage(text) else Outcome.REFUSED


def shorten(text: str | bytes, limit: int = 120) -> str:
    """Untrusted text for a reason: one printable line of at most `limit` characters."""
    if isinstance(text, bytes):
        text = text[: 4 * limit].decode("utf-8", "replace")
    line = ascii(text)[1:-1] if not text.isprintable() else text
    return line if len(line) <= limit else line[:limit] + "..."
