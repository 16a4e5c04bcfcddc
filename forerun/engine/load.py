"""From a model's name to a running engine."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import torch

from forerun.core.types import Exactness, ModelInfo, TokenizerFiles
from forerun.engine.convert import ensure_converted, ensure_smollm2, silent, with_remedy
from forerun.engine.cores import threads_to_use
from forerun.engine.cuda.load import load_torch_forward
from forerun.engine.device import choose_device, device_asked
from forerun.engine.kv import BLOCK
from forerun.engine.model_config import UNSUPPORTED, read_config
from forerun.engine.native.build import KernelsUnavailableError, load_kernels
from forerun.engine.native.forward import NativeForward, block_bytes
from forerun.engine.paged_engine import PagedEngine
from forerun.engine.pool_size import pool_blocks
from forerun.engine.probe import probe_once
from forerun.engine.rows import Forward
from forerun.engine.tokenizer_files import end_token_ids, read_tokenizer, vocabulary
from forerun.engine.weights import revision
from forerun.errors import InvalidRequest, NotFound

log = logging.getLogger(__name__)

Progress = Callable[[str, float], None]
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def load_engine(
    spec: str,
    *,
    name: str | None = None,
    dtype: str = "bfloat16",
    device: str | None = None,
    threads: int | None = None,
    pool_bytes: int | None = None,
    progress: Progress | None = None,
) -> tuple[PagedEngine, TokenizerFiles]:
    """Load a model and probe it; return its engine and tokenizer.

    `spec`: "smollm2", a folder, a .gguf file, or a hub id. `name`: what the model is called, by default after its
    spec. `device`: auto, cpu or cuda, None takes $FORERUN_DEVICE or auto. `threads`: on CPUs, None takes
    $FORERUN_THREADS or all cores. `pool_bytes`: KV memory, None takes a share of the machine's or of the GPU's.
    The engine belongs to the calling thread.
    Raises NotFound for a model that is not there, InvalidRequest for one that is broken or not supported.
    """
    progress = progress or silent
    if dtype not in DTYPES:
        raise InvalidRequest(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}", field="dtype")
    said = device_asked(device)
    folder = find_folder(spec, progress)
    threads = threads_to_use(threads)
    with with_remedy(folder):
        files = read_tokenizer(folder)
        tokens = vocabulary(files.tokenizer_json)
        loaded = _load_forward(folder, tokens.keys(), DTYPES[dtype], said, threads, pool_bytes, progress)
        end_ids = end_token_ids(folder, files, tokens)
    held = loaded.num_blocks * BLOCK
    if held < loaded.max_context:
        log.warning("the KV pool holds %d positions; the model's context is %d", held, loaded.max_context)
    weights = revision(folder)
    model = ModelInfo(
        name=name or model_name(spec),
        revision=weights[:16],
        vocab_fingerprint=files.vocab_fingerprint,
        vocab_size=loaded.vocab_size,
        max_context=min(loaded.max_context, held),
        numerics=hashlib.sha256(
            f"{weights} {dtype} {loaded.device} {loaded.forward.build}".encode()
        ).hexdigest()[:32],
        exact=Exactness.NUMERIC,
        end_token_ids=end_ids,
    )
    masked_ids = _masked_ids(loaded.vocab_size, tokens.keys())
    engine = PagedEngine(model, loaded.forward, loaded.num_blocks, masked_ids)
    progress("probing", 0.0)
    engine.set_exactness(probe_once(engine, threads))
    progress("probing", 1.0)
    return engine, files


@dataclass(frozen=True, slots=True)
class _Loaded:
    forward: Forward
    num_blocks: int
    vocab_size: int
    max_context: int
    device: str = "cpu"


def _masked_ids(vocab_size: int, token_ids: AbstractSet[int]) -> list[int]:
    """The ids inside the vocabulary that name no token."""
    return sorted(set(range(vocab_size)) - token_ids)


def _load_forward(
    folder: Path,
    token_ids: AbstractSet[int],
    dtype: torch.dtype,
    device: str,
    threads: int,
    pool_bytes: int | None,
    progress: Progress,
) -> _Loaded:
    """Our own forward where it knows the model, on CPUs where a C compiler is at hand; else transformers' modules.

    These compute on CPUs alone: a model that takes them is refused where a GPU was asked for by name.
    """
    num_tokens = max(token_ids) + 1
    chosen = choose_device(device)
    if chosen.type != "cpu":
        try:
            return _load_torch(folder, token_ids, dtype, chosen, pool_bytes, progress)
        except InvalidRequest as error:
            if error.reason != UNSUPPORTED or device == chosen.type:
                raise
            log.warning("the GPU stays unused, this model computes on the CPUs: %s", error.message)
    try:
        return _load_native(folder, num_tokens, dtype, threads, pool_bytes, progress)
    except KernelsUnavailableError as error:
        log.warning("computing without kernels, more slowly: %s", error)
    except InvalidRequest as error:
        if error.reason != UNSUPPORTED:
            raise
        log.info("computing through transformers' modules: %s", error.message)
    return _load_modules(folder, num_tokens, dtype, threads, pool_bytes, progress)


def _load_native(
    folder: Path,
    num_tokens: int,
    dtype: torch.dtype,
    threads: int,
    pool_bytes: int | None,
    progress: Progress,
) -> _Loaded:
    config = read_config(folder)
    vocab_size = min(num_tokens, config.vocab_width)
    forward = NativeForward(load_kernels(), config, vocab_size=vocab_size, dtype=dtype, threads=threads)
    num_blocks = pool_blocks(block_bytes(config, dtype), config.max_context, pool_bytes)
    forward.load(folder, num_blocks, lambda fraction: progress("loading weights", fraction))
    return _Loaded(forward, num_blocks, vocab_size, config.max_context)


def _load_torch(
    folder: Path,
    token_ids: AbstractSet[int],
    dtype: torch.dtype,
    device: torch.device,
    pool_bytes: int | None,
    progress: Progress,
) -> _Loaded:
    config = read_config(folder)
    vocab_size = min(max(token_ids) + 1, config.vocab_width)
    forward, num_blocks = load_torch_forward(
        folder,
        config,
        vocab_size=vocab_size,
        masked_ids=_masked_ids(vocab_size, token_ids),
        dtype=dtype,
        device=device,
        pool_bytes=pool_bytes,
        progress=progress,
    )
    return _Loaded(forward, num_blocks, vocab_size, config.max_context, device.type)


def _load_modules(
    folder: Path,
    num_tokens: int,
    dtype: torch.dtype,
    threads: int,
    pool_bytes: int | None,
    progress: Progress,
) -> _Loaded:
    from forerun.engine.modules_forward import ModulesForward  # noqa: PLC0415 - imports transformers: seconds

    progress("loading weights", 0.0)
    forward = ModulesForward(folder, dtype=dtype, threads=threads)
    num_blocks = pool_blocks(forward.block_bytes, forward.max_context, pool_bytes)
    forward.allocate(num_blocks)
    return _Loaded(forward, num_blocks, min(num_tokens, forward.vocab_width), forward.max_context)


def find_folder(spec: str, progress: Progress) -> Path:
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


def _from_hub(spec: str) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - a second of imports, for hub ids alone
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError  # noqa: PLC0415

    wanted = ["*.json", "*.safetensors", "*.jinja"]
    try:
        return Path(snapshot_download(spec, allow_patterns=wanted))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise NotFound(f"no model {spec!r} here or on the hub: {error}", reason="NO_MODEL") from error
