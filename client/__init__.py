"""What a program says to a broker: one call is one HTTP request, and its outcome is typed."""

from client.answers import (
    AckAnswer,
    AckedItem,
    AckItem,
    Done,
    ExtendAnswer,
    Health,
    Message,
    PopAnswer,
    PushAnswer,
    PushedItem,
    PushItem,
)
from client.broker_client import BrokerClient, parse_url
from client.fluent import CallFailedError, Queen
from client.outcome import Call, Outcome

__all__ = [
    "AckAnswer",
    "AckItem",
    "AckedItem",
    "BrokerClient",
    "Call",
    "CallFailedError",
    "Done",
    "ExtendAnswer",
    "Health",
    "Message",
    "Outcome",
    "PopAnswer",
    "PushAnswer",
    "PushItem",
    "PushedItem",
    "Queen",
    "parse_url",
]
