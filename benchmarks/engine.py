"""A pass of the engine against its parts and against transformers, interleaved; JSON on stdout.

For each number of rows: `engine`, one pass over sessions of --kv positions; `products`, the same matrix products
alone through oneDNN's prepacked linears; `read`, reading as many bytes once; `transformers`, its own forward with
its own cache (one session only). Milliseconds; the machine is judged by the ratios, not by the times.

    python benchmarks/engine.py --threads 2 --dtype bfloat16 > engine.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from forerun.engine.interface import Segment
from forerun.engine.load import DTYPES, find_folder, load_engine
from forerun.engine.model_config import ModelConfig, read_config
from forerun.engine.paged_engine import PagedEngine

# (sessions, rows of each): one session's plan lengths, then several sessions.
SHAPES = ((1, 1), (1, 2), (1, 5), (1, 8), (1, 16), (2, 5), (4, 5), (8, 1), (8, 5))
Run = Callable[[], object]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16", choices=sorted(DTYPES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    folder = find_folder(arguments.model, lambda *_: None)
    engine, _ = load_engine(arguments.model, dtype=arguments.dtype, threads=arguments.threads)
    config, dtype = read_config(folder), DTYPES[arguments.dtype]
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    text = [int(x) for x in np.random.default_rng(0).integers(0, engine.model.vocab_size, arguments.kv)]
    for session in range(max(sessions for sessions, _ in SHAPES)):
        engine.open(str(session), [text[0]])
        own = [text[session], *text[1:]]  # no prefix in common
        engine.forward([Segment(str(session), 0, own, 0)])
    results = [
        {"sessions": sessions, "rows": rows}
        | measure(runs(engine, config, stock, dtype, text, sessions, rows), arguments.rounds)
        for sessions, rows in SHAPES
    ]
    print(json.dumps({"settings": vars(arguments), "model": engine.model.name, "shapes": results}, indent=2))


def runs(
    engine: PagedEngine,
    config: ModelConfig,
    stock: torch.nn.Module,
    dtype: torch.dtype,
    text: list[int],
    sessions: int,
    rows: int,
) -> dict[str, Run]:
    """What is timed, by name."""
    segments = [Segment(str(session), len(text), [5] * rows, rows) for session in range(sessions)]
    products, weight_bytes = prepacked(config, dtype, sessions * rows)
    weights = torch.zeros(weight_bytes // 8, dtype=torch.int64).random_()
    found: dict[str, Run] = {
        "engine": lambda: engine.forward(segments),
        "products": products,
        "read": weights.sum,
    }
    if sessions == 1:
        found["transformers"] = stock_pass(stock, text, rows)
    return found


def measure(named: dict[str, Run], rounds: int) -> dict[str, float]:
    """Median milliseconds of each, taken in turns; and the engine's ratio to the products alone."""
    times: dict[str, list[float]] = {name: [] for name in named}
    with torch.inference_mode():
        for _ in range(rounds + 1):
            for name, run in named.items():
                begin = time.perf_counter()
                run()
                times[name].append((time.perf_counter() - begin) * 1e3)
    medians = {f"{name}_ms": round(statistics.median(taken[1:]), 2) for name, taken in times.items()}
    best = {f"{name}_best_ms": round(min(taken[1:]), 2) for name, taken in times.items()}
    return medians | best | {"engine_to_products": round(medians["engine_ms"] / medians["products_ms"], 2)}


def prepacked(config: ModelConfig, dtype: torch.dtype, rows: int) -> tuple[Run, int]:
    """All of a pass's products through oneDNN, and the bytes of their weights."""
    attention = config.num_heads * config.head_dim
    layer = (
        (attention + 2 * config.num_kv_heads * config.head_dim, config.hidden),
        (config.hidden, attention),
        (2 * config.intermediate, config.hidden),
        (config.hidden, config.intermediate),
    )
    shapes = [*layer * config.num_layers, (config.vocab_width, config.hidden)]
    reorder, linear = torch.ops.mkldnn._reorder_linear_weight, torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 - no public name
    packed = [(reorder(torch.randn(shape).to(dtype), None), shape[1]) for shape in shapes]
    inputs = {width: torch.randn(max(2, rows), width).to(dtype) for _, width in packed}

    def run() -> None:
        for weight, width in packed:
            linear(inputs[width], weight, None, "none", [], None)

    return run, sum(n * k for n, k in shapes) * dtype.itemsize


def stock_pass(model: torch.nn.Module, text: list[int], rows: int) -> Run:
    """One forward of transformers over `rows` tokens after `text`; its cache is cut back each time."""
    cache = DynamicCache()
    token_ids = torch.full((1, rows), 5)
    with torch.inference_mode():
        model(input_ids=torch.tensor([text]), cache=cache, use_cache=True)

    def run() -> None:
        model(input_ids=token_ids, cache=cache, use_cache=True)
        cache.crop(-rows)

    return run


if __name__ == "__main__":
    main()
