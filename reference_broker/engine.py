"""The engine: all that the broker does, without HTTP.

Small methods on purpose: what a broker can get wrong is one method each, so that a test of the suite's own power can
break it by overriding that one.
"""

from __future__ import annotations

from reference_broker.acking import Acking
from reference_broker.managing import Managing
from reference_broker.model import QUEUE_MODE
from reference_broker.popping import Popping
from reference_broker.pushing import Pushing


class Engine(Pushing, Popping, Acking, Managing):
    """A partitioned message broker with consumer groups on one SQLite storage.

    Public calls are `push`, `pop`, `ack`, `extend`, `configure`, `seek`, `delete_queue`, `delete_group`,
    `dead_letters` and `stop`. Each write is one transaction with no `await` inside, so calls act one after the other.
    `hook`, if there is one, is awaited before the transaction and after it.
    """

    def register_parked(self, queue: str, group: str | None = None) -> None:
        """Decides anew where the groups of parked pops start: they are there already, before the next push."""
        for waiter in self.parking.of(queue):
            if waiter.pop.group != QUEUE_MODE and group in (None, waiter.pop.group) and not waiter.gone:
                self.find_queue(waiter.pop)
