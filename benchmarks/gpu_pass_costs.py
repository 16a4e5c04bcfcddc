"""What a pass costs by its rows, beside its parts; medians in ms of interleaved rounds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional as fn

from benchmarks.gpu_models import Loaded, Report, Size
from forerun.engine.cuda.device_weights import DeviceWeights
from forerun.engine.cuda.graphs import Graphs
from forerun.engine.interface import Segment

SHAPES = ((1, 1), (1, 2), (1, 5), (1, 8), (2, 8), (8, 5), (8, 8), (16, 8))  # sessions, rows of each


def pass_costs(model: Loaded, size: Size, device: torch.device) -> Report:
    """Medians in ms by number of rows, interleaved: the pass, the pass without logits, the products alone."""
    engine = model.engine
    text = random_text(size.kv, engine.model.vocab_size, 1)
    most = max(sessions for sessions, _ in SHAPES)
    for session in range(most):
        engine.open(str(session), [0])
        engine.forward([Segment(str(session), 0, [session, *text[1:]], 0)])
    found = {}
    for sessions, rows in SHAPES:
        fed = text[:rows]
        wanted = [Segment(str(s), size.kv, fed, rows) for s in range(sessions)]
        silent = [Segment(str(s), size.kv, fed, 0) for s in range(sessions)]
        found[str(sessions * rows)] = medians(
            {
                "engine": lambda segments=wanted: engine.forward(segments),
                "without_logits": lambda segments=silent: engine.forward(segments),
                "products": products(model.weights, sessions * rows, device),
            },
            size.rounds,
            device,
        )
    for session in range(most):
        engine.close(str(session))
    return {"rows": found, "read": read_ms(model.weights.product_bytes, size.rounds, device)}


def products(weights: DeviceWeights, rows: int, device: torch.device) -> Callable[[], object]:
    """The model's matrix products alone, at so many rows, captured where that can be."""
    dtype = weights.embedding.dtype

    def inputs(weight: torch.Tensor) -> torch.Tensor:
        return torch.ones(rows, weight.shape[1], dtype=dtype, device=device)

    layer = weights.layers[0]
    xs = [inputs(w) for w in (layer.qkv, layer.attention_out, layer.gate_up, layer.down, weights.head)]

    def work() -> None:
        for one in weights.layers:
            for x, weight in zip(xs, (one.qkv, one.attention_out, one.gate_up, one.down), strict=False):
                fn.linear(x, weight)
        fn.linear(xs[-1], weights.head)

    with torch.inference_mode():
        return Graphs(device).capture(work) if device.type == "cuda" else work


def read_ms(num_bytes: int, rounds: int, device: torch.device) -> float:
    """Milliseconds to read so many bytes once: half of what copying them takes."""
    part = min(num_bytes, 1 << 30)
    source = torch.ones(part, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    took = medians({"copy": lambda: target.copy_(source)}, rounds, device)["copy"]
    return round(took / 2 * num_bytes / part, 3)


def medians(work: dict[str, Callable[[], object]], rounds: int, device: torch.device) -> dict[str, float]:
    """Milliseconds of each, run in turn, the first round not counted."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds + 1):
        for name, run in work.items():
            started = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            taken[name].append(1000 * (time.perf_counter() - started))
    return {name: round(statistics.median(times[1:]), 3) for name, times in taken.items()}


def random_text(length: int, vocab_size: int, seed: int) -> list[int]:
    """Random tokens."""
    return [int(x) for x in np.random.default_rng(seed).integers(0, vocab_size, length)]
