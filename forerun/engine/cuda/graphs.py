"""Work on a GPU captured once and replayed: one launch instead of hundreds."""

from __future__ import annotations

from collections.abc import Callable

import torch

_WARM_UP = 2  # runs before capture: kernels are compiled and chosen, workspaces made


class Graphs:
    """Captures work on one device. Graphs share memory for what is between, so none runs beside another."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return what replays `work`. All it reads and leaves must lie in buffers that stay where they are."""
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                work()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            work()
        return graph.replay
