"""Models and drafter sources, refused before any process starts for them."""

from __future__ import annotations

from pathlib import Path

from drafter_service.sources.load import open_source
from forerun.cli.cores import RUNS_A_MODEL
from forerun.engine.interface import Engine
from forerun.errors import InternalFault, InvalidRequest


async def check_source(source: str) -> None:
    """A drafter would take this source, as far as can be told without loading its model.

    Raises the drafter's own InvalidRequest, and `check_model`'s.
    """
    found = RUNS_A_MODEL.match(source)
    if found and source[found.end() :]:
        check_model(source[found.end() :])
        source = found.group().removesuffix("model:") + "ngram"  # what is left to be checked stands before it
    async with open_source(source, _unloaded):
        pass


def check_model(spec: str) -> None:
    """There is something where a path leads; any other name is the service's to find. Raises InvalidRequest."""
    path = Path(spec).expanduser()
    if path.suffix == ".gguf":
        wanted, found = "file", path.is_file()
    else:
        wanted, found = "folder", path.is_dir()
    if not found and (path.is_absolute() or spec.startswith(("./", "../", "~")) or path.suffix == ".gguf"):
        raise InvalidRequest(
            f"no model {spec!r}: there is no such {wanted}", reason="NO_MODEL", field="model"
        )


def _unloaded(spec: str) -> Engine:
    raise InternalFault(f"the model {spec!r} was to be checked only")
