"""Gateways that play a script, on real gRPC servers of their own threads."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from forerun.v1 import gateway_pb2, gateway_pb2_grpc, sampling_pb2
from gateway.events import Delta, Event
from gateway.servicer import event_to_fields


class ScriptedDoor(gateway_pb2_grpc.GatewayServiceServicer):
    """Plays the events to whoever asks; `breaks_after`: is lost after so many of them. Keeps what it was asked."""

    def __init__(self, events: list[Event], breaks_after: int | None = None) -> None:
        self.events = events
        self.breaks_after = breaks_after
        self.asked: list[object] = []
        self.address = ""

    def Generate(self, request, context):
        self.asked.append(request)
        for number, event in enumerate(self.events):
            self._lose(number, context)
            yield gateway_pb2.GenerateResponse(**event_to_fields(event))

    def Resume(self, request, context):
        self.asked.append(request)
        for number, event in enumerate(self.events):
            self._lose(number, context)
            if not isinstance(event, Delta) or event.offset >= request.offset:
                yield gateway_pb2.ResumeResponse(**event_to_fields(event))

    def GetSession(self, request, context):
        self.asked.append(request)
        self._lose(0, context)
        return gateway_pb2.GetSessionResponse(
            session_id=request.session_id, text="kept", mode=sampling_pb2.MODE_GREEDY
        )

    def _lose(self, number: int, context: grpc.ServicerContext) -> None:
        if number == self.breaks_after:
            context.abort(grpc.StatusCode.UNAVAILABLE, "lost")


@contextmanager
def opened(*doors: ScriptedDoor) -> Iterator[str]:
    """Inside, the doors are served; their addresses with commas between them."""
    servers = []
    for door in doors:
        server = grpc.server(ThreadPoolExecutor(2))
        gateway_pb2_grpc.add_GatewayServiceServicer_to_server(door, server)
        door.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        servers.append(server)
    try:
        yield ",".join(door.address for door in doors)
    finally:
        for server in servers:
            server.stop(None).wait()
