"""A schedule in one line: `1 push p0 m1,m2 | 2 pop G p0 batch 1 | 3 ack G m1`.

Messages are named as the violation names them, which takes the history of the schedule: which message an ack meant is
known only from the answers. Without a history, the items of pushes are counted and an ack says "pop 2 message 1".
"""

from __future__ import annotations

from collections.abc import Iterator

from contract.checks.facts import gather
from contract.history import AckCall, History
from strategies.schedule import (
    Ack,
    Advance,
    BrokerFault,
    Configure,
    CrashConsumer,
    DelayAnswer,
    DelayRequest,
    DropConnection,
    Extend,
    KillBroker,
    LaneStep,
    LoseAnswer,
    LoseRequest,
    Parallel,
    PauseBroker,
    Pop,
    Push,
    RepeatRequest,
    RestartBroker,
    Schedule,
    Seek,
    Step,
    StorageFault,
    StorageOutage,
    Storm,
)

NO_GROUP = "(no group)"
UNKNOWN_MESSAGE = "m?"


def messages_of_steps(history: History) -> dict[str, tuple[str, ...]]:
    """Where in the schedule ("3", "5.1.2") to the names of the messages that its push or ack is about."""
    try:
        facts = gather(history)
    except Exception:  # the report of a history that the judge cannot read either must still come out
        return {}
    steps: dict[str, tuple[str, ...]] = {}
    for call in facts.acks:
        if isinstance(call.request, AckCall):
            queue = call.request.queue
            known = (facts.by_id.get((queue, message_id)) for message_id in call.request.message_ids)
            steps.setdefault(call.step, tuple(message.name if message else UNKNOWN_MESSAGE for message in known))
    pushed: dict[int, list[str]] = {}
    for message in facts.messages:
        if message.push is not None:
            pushed.setdefault(message.push.number, []).append(message.name)
    for call in facts.pushes:
        steps.setdefault(call.step, tuple(pushed.get(call.number, ())))
    return steps


def notation(schedule: Schedule, history: History | None = None) -> str:
    """The whole schedule as one line; "(no steps)" for an empty one.

    After its steps every schedule drains each group; that is shown for groups which no step names.
    """
    writer = _Writer(schedule, history)
    steps = [f"{number} {writer.step(step, str(number))}" for number, step in enumerate(schedule.steps, 1)]
    unnamed = writer.groups_without_a_pop()
    if steps and unnamed:
        steps.append(f"then drain {', '.join(unnamed)}")
    return " | ".join(steps) or "(no steps)"


class _Writer:
    """Writes the steps of one schedule."""

    def __init__(self, schedule: Schedule, history: History | None) -> None:
        self._schedule = schedule
        self._messages = messages_of_steps(history) if history is not None else {}
        self._counted = 0
        self._pushed = sum(len(step.items) for step in _pushes(schedule.steps))

    def step(self, step: Step, where: str) -> str:
        """One step; `where` is its place in the schedule."""
        if isinstance(step, Parallel):
            lanes = (self._lane(lane, f"{where}.{number}") for number, lane in enumerate(step.lanes, 1))
            return "at once { " + " || ".join(lanes) + " }"
        if isinstance(step, Storm):
            return self._storm(step)
        return self._lane_step(step, where)

    def groups_without_a_pop(self) -> list[str]:
        """Names of the groups of the schedule that only the drain reads."""
        count = len(self._schedule.groups)
        popped = {pop.group % count for pop in _pops(self._schedule.steps)}
        return [self._group(number) for number in range(count) if number not in popped]

    def _lane(self, lane: tuple[LaneStep, ...], where: str) -> str:
        return ", ".join(self._lane_step(step, f"{where}.{number}") for number, step in enumerate(lane, 1))

    def _lane_step(self, step: LaneStep, where: str) -> str:
        match step:
            case Push():
                return self._push(step, where)
            case Pop():
                return self._pop(step)
            case Ack():
                return self._ack(step, where)
            case Extend():
                return f"extend pop {step.pop} by {step.seconds} s"
            case Configure():
                return _configure(step)
            case Seek():
                where_to = "*" if step.partition is None else f"p{step.partition}"
                return f"seek {self._group(step.group)} {where_to} to the {'end' if step.to_end else 'start'}"
            case LoseRequest():
                return f"lose request ({self._lane_step(step.step, where)})"
            case LoseAnswer():
                return f"lose answer ({self._lane_step(step.step, where)})"
            case DelayRequest():
                return f"delay request {step.ms} ms ({self._lane_step(step.step, where)})"
            case DelayAnswer():
                return f"delay answer {step.ms} ms ({self._lane_step(step.step, where)})"
            case RepeatRequest():
                return f"send twice, {step.ms} ms apart ({self._lane_step(step.step, where)})"
            case DropConnection():
                return f"leave after {step.ms} ms ({self._lane_step(step.step, where)})"
            case _:
                return self._no_request(step)

    def _no_request(self, step: Advance | CrashConsumer | BrokerFault) -> str:
        match step:
            case Advance():
                return f"wait {step.ms} ms"
            case CrashConsumer():
                return f"crash consumer {self._group(step.group)} {step.worker}"
            case KillBroker():
                return "kill broker" + _down(step.down_ms)
            case RestartBroker():
                return "restart broker" + _down(step.down_ms)
            case PauseBroker():
                return f"pause broker {step.ms} ms"
            case StorageFault():
                return f"fail {step.operations} storage writes"
            case StorageOutage():
                return f"storage away {step.ms} ms"

    def _push(self, step: Push, where: str) -> str:
        known = self._messages.get(where, ())
        missing = UNKNOWN_MESSAGE if self._messages else ""
        runs: list[tuple[int, list[str]]] = []
        for index, item in enumerate(step.items):
            self._counted += 1
            name = known[index] if index < len(known) else missing or f"m{self._counted}"
            if item.key is not None:
                name += f"(id {item.key})"
            if not runs or runs[-1][0] != item.partition:
                runs.append((item.partition, []))
            runs[-1][1].append(name)
        return "push " + " ".join(f"p{partition} {','.join(names)}" for partition, names in runs)

    def _pop(self, step: Pop) -> str:
        words = ["pop", self._group(step.group), "*" if step.partition is None else f"p{step.partition}"]
        words.append("all" if step.batch >= self._pushed else f"batch {step.batch}")
        if step.partition is None and step.partitions != 1:
            words.append(f"partitions {step.partitions or 'any'}")
        if step.auto_ack:
            words.append("auto-ack")
        elif step.lease_s != Pop(label=0).lease_s:
            words.append("lease of the queue" if step.lease_s is None else f"lease {step.lease_s} s")
        if step.wait_ms:
            words.append(f"park {step.wait_ms} ms")
        if step.from_now:
            words.append("from now")
        elif step.mode is not None:
            words.append(f"mode {step.mode}")
        if step.worker:
            words.append(f"worker {step.worker}")
        return " ".join(words)

    def _ack(self, step: Ack, where: str) -> str:
        pop = next((pop for pop in _pops(self._schedule.steps) if pop.label == step.pop), None)
        known = self._messages.get(where, ())
        words = ["ack", NO_GROUP if pop is None else self._group(pop.group)]
        for status in dict.fromkeys(item.status for item in step.items):
            mine = [index for index, item in enumerate(step.items) if item.status == status]
            if known:
                what = ",".join(known[index] for index in mine if index < len(known))
            else:
                what = f"pop {step.pop} message " + ",".join(str(step.items[index].message + 1) for index in mine)
            words += [status, what] if status != "completed" else [what]
        if step.lease != "right":
            lease = {"stale": "with a stale lease", "newest": "with the newest lease"}
            words.append(lease.get(step.lease, "without lease"))
        return " ".join(word for word in words if word)

    def _storm(self, step: Storm) -> str:
        kill = "" if step.kill_at is None else f", kill at {step.kill_at} %"
        return (
            f"storm of {step.operations} pushes by {step.pushers} over {step.partitions} partitions, "
            f"{step.consumers} consumers of {self._group(step.group)}{kill}"
        )

    def _group(self, number: int) -> str:
        groups = self._schedule.groups
        return groups[number % len(groups)].name or NO_GROUP


def _configure(step: Configure) -> str:
    names = ("lease_time_s", "retry_limit", "dead_letter_queue", "dlq_after_max_retries", "dedup_window_s")
    options = [f"{name}={value}" for name in names if (value := getattr(step, name)) is not None]
    return " ".join(["configure", *options])


def _down(down_ms: int) -> str:
    return f", down {down_ms} ms" if down_ms else ""


def _requests(steps: tuple[Step, ...]) -> Iterator[object]:
    for step in steps:
        inner = [one for lane in step.lanes for one in lane] if isinstance(step, Parallel) else [step]
        for one in inner:
            yield getattr(one, "step", one)


def _pushes(steps: tuple[Step, ...]) -> Iterator[Push]:
    return (step for step in _requests(steps) if isinstance(step, Push))


def _pops(steps: tuple[Step, ...]) -> Iterator[Pop]:
    return (step for step in _requests(steps) if isinstance(step, Pop))
