"""Which values an option of a queue may have while a call acts.

A configure that was answered before the call was sent overrides what came before it; one that overlaps another or
the call, or was not answered, may be in force or not. An option that a configure does not name keeps its value, or, on
brokers before 1.6, goes back to its default: both are allowed.
"""

from __future__ import annotations

from contract.checks.facts import Call, Facts
from contract.history import ConfigureCall

Value = int | bool | str


def possible_values(facts: Facts, queue: str, option: str, default: Value, call: Call) -> set[Value]:
    """Every value that `option` of `queue` may have at some moment of `call`; `default` is that of a new queue."""
    if not facts.configures:
        return {default}
    values: set[Value] = {default}
    settled: Call | None = None  # the last configure that certainly came after everything before it
    for configure in sorted(facts.configures, key=lambda c: c.returned):
        request = configure.request
        assert isinstance(request, ConfigureCall)
        if request.queue != queue or configure.refused or configure.invoked > call.until:
            continue
        named = request.options.get(option)
        overrides = (
            named is not None
            and configure.returned < call.invoked
            and (settled is None or settled.returned < configure.invoked)
            and not _overlapped(facts, configure)
        )
        if named is None:
            values.add(default)
        elif overrides:
            values = {named}
        else:
            values.add(named)
        if configure.ok:
            settled = configure
    return values


def _overlapped(facts: Facts, configure: Call) -> bool:
    """Whether another configure may have acted after it though it was sent before it returned."""
    return any(
        other is not configure and other.invoked < configure.returned and other.until > configure.invoked
        for other in facts.configures
        if not other.refused
    )
