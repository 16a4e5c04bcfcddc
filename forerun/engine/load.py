"""From a model's name to a running engine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import torch

from forerun.core.types import Exactness, ModelInfo, TokenizerFiles
from forerun.engine.convert import ensure_converted, ensure_smollm2, silent
from forerun.engine.cores import threads_to_use
from forerun.engine.kv import BLOCK
from forerun.engine.model_config import ModelConfig, read_config
from forerun.engine.native.build import load_kernels
from forerun.engine.native.forward import NativeForward, block_bytes
from forerun.engine.paged_engine import PagedEngine
from forerun.engine.tokenizer_files import end_token_ids, read_tokenizer, vocabulary
from forerun.engine.weights import revision
from forerun.errors import InvalidRequest, NotFound

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
DEFAULT_POOL_BYTES = 2 << 30
MEMORY_SHARE = 0.25  # of the machine's memory, for the KV pool, at most


def load_engine(
    spec: str,
    *,
    name: str | None = None,
    dtype: str = "bfloat16",
    threads: int | None = None,
    pool_bytes: int | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> tuple[PagedEngine, TokenizerFiles]:
    """Load a model and probe it; return its engine and tokenizer.

    `spec`: "smollm2", a folder, a .gguf file, or a hub id. `name`: what the model is called, by default after its
    spec. `threads`: None takes $FORERUN_THREADS or all cores.
    `pool_bytes`: KV memory, None takes a share of the machine's. The engine belongs to the calling thread.
    Raises NotFound for a model that is not there, InvalidRequest for one that is broken or not supported.
    """
    progress = progress or silent
    if dtype not in DTYPES:
        raise InvalidRequest(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}", field="dtype")
    folder = find_folder(spec, progress)
    config = read_config(folder)
    files = read_tokenizer(folder)
    tokens = vocabulary(files.tokenizer_json)
    vocab_size = min(max(tokens) + 1, config.vocab_width)
    forward = NativeForward(
        load_kernels(), config, vocab_size=vocab_size, dtype=DTYPES[dtype], threads=threads_to_use(threads)
    )
    num_blocks = pool_blocks(config, DTYPES[dtype], pool_bytes)
    forward.load(folder, num_blocks, lambda fraction: progress("loading weights", fraction))
    weights = revision(folder)
    model = ModelInfo(
        name=name or model_name(spec),
        revision=weights[:16],
        vocab_fingerprint=files.vocab_fingerprint,
        vocab_size=vocab_size,
        max_context=config.max_context,
        numerics=hashlib.sha256(f"{weights} {dtype} cpu {forward.build}".encode()).hexdigest()[:32],
        exact=Exactness.NUMERIC,
        end_token_ids=end_token_ids(folder, files, tokens),
    )
    missing = sorted(set(range(vocab_size)) - tokens.keys())
    engine = PagedEngine(model, forward, num_blocks, missing)
    return engine, files


def find_folder(spec: str, progress: Callable[[str, float], None]) -> Path:
    """The folder that holds the model `spec` names; converts or downloads it first where that is needed."""
    if spec == "smollm2":
        return ensure_smollm2(progress)
    path = Path(spec).expanduser()
    if path.is_dir():
        return path
    if path.suffix == ".gguf":
        return ensure_converted(path, progress)
    if path.is_absolute() or spec.startswith(".") or spec.count("/") != 1:
        raise NotFound(f"no model {spec!r}: no such folder, .gguf file or hub id", reason="NO_MODEL")
    return _from_hub(spec)


def model_name(spec: str) -> str:
    """What the model is called: the hub id, or the last part of a path."""
    path = Path(spec).expanduser()
    return path.resolve().stem if path.suffix == ".gguf" else path.resolve().name if path.is_dir() else spec


def pool_blocks(config: ModelConfig, dtype: torch.dtype, pool_bytes: int | None) -> int:
    """Blocks the KV pool gets. Raises InvalidRequest if they do not hold one full context."""
    room = pool_bytes if pool_bytes is not None else min(DEFAULT_POOL_BYTES, int(_memory_bytes() * MEMORY_SHARE))
    size = block_bytes(config, dtype)
    blocks, needed = room // size, -(-config.max_context // BLOCK)
    if blocks < needed:
        raise InvalidRequest(
            f"a KV pool of {room >> 20} MiB does not hold one context of {config.max_context} positions; "
            f"it takes {-(-needed * size >> 20)} MiB",
            field="pool_bytes",
            reason="POOL_TOO_SMALL",
        )
    return blocks


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _from_hub(spec: str) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - a second of imports, for hub ids alone
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError  # noqa: PLC0415

    wanted = ["*.json", "*.safetensors", "*.jinja"]
    try:
        return Path(snapshot_download(spec, allow_patterns=wanted))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise NotFound(f"no model {spec!r} here or on the hub: {error}", reason="NO_MODEL") from error
