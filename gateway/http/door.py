"""What the HTTP routes need of the gateway; `gateway.service.Gateway` is it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from forerun.core.types import ModelInfo
from gateway.events import Event
from gateway.request import GenerationRequest


class Events(Protocol):
    """`Opened`, `Delta`s, `Finished`. Closing detaches: the answer runs on for a while and can be resumed."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """The events, each once."""

    async def __anext__(self) -> Event:
        """The next one."""

    async def aclose(self) -> None:
        """End the iteration; may be called at any time and again."""


class Door(Protocol):
    """Generation and its resumption; both raise ForerunError at once, and later from the events."""

    async def generate(self, request: GenerationRequest) -> Events:
        """Start an answer."""

    async def resume(self, session_id: str, offset: int) -> Events:
        """A session's answer from `offset` answer tokens on."""

    def models(self) -> Sequence[ModelInfo]:
        """What can be asked for now."""

    async def healthy(self) -> bool:
        """Whether an answer could be given now."""
