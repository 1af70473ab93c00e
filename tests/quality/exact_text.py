"""A short history as a few lines of text, with short names for messages and leases."""

from __future__ import annotations

from contract.history import (
    AckCall,
    AckResult,
    Call,
    ConfigureCall,
    DeleteQueueCall,
    EffectEnd,
    Event,
    ExtendCall,
    ExtendResult,
    Fault,
    History,
    Invoke,
    PopCall,
    PopResult,
    PushCall,
    PushResult,
    Result,
    Return,
    SeekCall,
)


def rendered(history: History) -> str:
    """One line an event: milliseconds, the number of the call, and what was sent (>) or answered (<)."""
    names = _Names()
    lines = [line for event in history.events if (line := names.line(event))]
    return "\n".join(lines)


class _Names:
    def __init__(self) -> None:
        self.messages: dict[str, str] = {}
        self.leases: dict[str, str] = {}
        self.ids: dict[str, str] = {}
        self.partitions: dict[str, str] = {}
        self.groups: dict[str, str] = {"": "(no group)"}

    def line(self, event: Event) -> str:
        """The line of an event; empty for what does not matter."""
        at = f"{event.at_us / 1000:>8.7g} ms"
        if isinstance(event, Invoke):
            return f"{at} {event.call:>3} > {self.asked(event.request)}"
        if isinstance(event, Return):
            answer = self.answered(event.result) if event.result is not None else event.outcome
            return f"{at} {event.call:>3} < {answer}"
        if isinstance(event, EffectEnd):
            return f"{at} {event.call:>3} . " + ("never acted" if event.acted is False else "can act no more")
        return f"{at}       {event.what}" if isinstance(event, Fault) else ""

    def asked(self, request: Call) -> str:
        """What was sent."""
        if isinstance(request, PushCall):
            ids = ["" if sent is None else f" id {self.id(sent)}" for sent in request.transaction_ids]
            return "push " + ", ".join(map(str.__add__, map(self.partition, request.partitions), ids))
        if isinstance(request, PopCall):
            return self._pop(request)
        if isinstance(request, AckCall):
            items = [
                f"{self.message(m)} {word} ({self.lease(lease)})"
                for m, word, lease in zip(request.message_ids, request.statuses, request.lease_ids, strict=True)
            ]
            return f"ack {self.group(request.group)} " + ", ".join(items)
        if isinstance(request, ExtendCall):
            return f"extend {self.lease(request.lease_id)} by {request.seconds} s"
        if isinstance(request, ConfigureCall):
            return "configure " + ", ".join(f"{name} {value}" for name, value in request.options.items())
        if isinstance(request, SeekCall):
            where = self.partition(request.partition) if request.partition is not None else "any"
            return f"seek {self.group(request.group)} {where} to the {'end' if request.to_end else 'start'}"
        assert isinstance(request, DeleteQueueCall)
        return "delete the queue"

    def _pop(self, request: PopCall) -> str:
        words = [f"pop {self.group(request.group)}", self.partition(request.partition) if request.partition else "any"]
        words += [f"batch {request.batch}"] if request.batch is not None else []
        words += [f"partitions {request.partitions}"] if request.partitions not in (None, 1) else []
        words += ["autoAck"] if request.auto_ack else [f"lease {request.lease_s} s"] if request.lease_s else []
        words += [f"wait {request.wait_ms} ms"] if request.wait_ms else []
        words += [request.mode] if request.mode else []
        return " ".join(words)

    def answered(self, result: Result) -> str:
        """What was answered."""
        if isinstance(result, PushResult):
            pairs = zip(result.message_ids, result.statuses, strict=True)
            return ", ".join(f"{self.message(m) if m else '?'} {status}" for m, status in pairs)
        if isinstance(result, PopResult):
            return self._given(result)
        if isinstance(result, AckResult):
            return ", ".join(self._settled(result, at) for at in range(len(result.successes)))
        if isinstance(result, ExtendResult):
            return f"renewed {result.renewed}"
        return "done"

    def _given(self, result: PopResult) -> str:
        if not result.message_ids:
            return "nothing"
        text = " ".join(self.message(message_id) for message_id in result.message_ids)
        text += f" ({self.lease(result.lease_id)})" if result.lease_id else ""
        text += f" offsets {_list(result.offsets)}" if result.offsets[0] is not None else ""
        return text + (f" attempt {_list(tuple(set(result.attempts)))}" if result.attempts[0] is not None else "")

    def _settled(self, result: AckResult, at: int) -> str:
        words = ["success" if result.successes[at] else "refused"]
        words += ["noop"] if result.noops[at] else []
        words += ["dlq"] if result.dead_lettered[at] else []
        words += [f"released {str(result.released[at]).lower()}"] if result.released[at] is not None else []
        return " ".join(words)

    def message(self, message_id: str) -> str:
        return self.messages.setdefault(message_id, f"m{len(self.messages) + 1}")

    def lease(self, lease_id: str | None) -> str:
        if lease_id is None:
            return "no lease"
        return self.leases.setdefault(lease_id, f"L{len(self.leases) + 1}")

    def id(self, transaction_id: str) -> str:
        return self.ids.setdefault(transaction_id, chr(ord("a") + len(self.ids) % 26))

    def partition(self, name: str) -> str:
        return self.partitions.setdefault(name, f"p{len(self.partitions)}")

    def group(self, name: str) -> str:
        return self.groups.setdefault(name, "GHIJK"[len(self.groups) - 1] if len(self.groups) < 6 else name)


def _list(values: tuple[int | None, ...]) -> str:
    return ", ".join(map(str, values))
