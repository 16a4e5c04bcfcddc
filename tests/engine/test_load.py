"""What loads, what is refused by name, and what a model says of itself."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from forerun.engine.load import load_engine
from forerun.engine.model_config import read_config
from forerun.engine.random_model import save_tiny_model
from forerun.errors import InvalidRequest, NotFound

POOL = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny_model(tmp_path / "model")
    return tmp_path / "model"


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def load(folder: Path, **options: object) -> object:
    return load_engine(str(folder), **{"threads": 1, "pool_bytes": POOL} | options)[0]


def test_a_model_says_what_it_is(folder: Path) -> None:
    engine, files = load_engine(str(folder), threads=1, pool_bytes=POOL)
    model = engine.model
    assert (model.name, model.vocab_size, model.max_context, model.end_token_ids) == ("model", 64, 512, (63,))
    assert model.vocab_fingerprint == files.vocab_fingerprint
    assert files.special_tokens == {"eos_token": "<eos>"}
    assert "message['content']" in files.chat_template
    assert load_engine(str(folder), name="mine", threads=1, pool_bytes=POOL)[0].model.name == "mine"


def test_numerics_tell_weights_dtypes_and_arithmetic_apart(
    folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    save_tiny_model(tmp_path / "other", seed=1)
    found = {
        load(folder, dtype="bfloat16").model.numerics,
        load(folder, dtype="float32").model.numerics,
        load(tmp_path / "other").model.numerics,
    }
    request.getfixturevalue("no_kernels")
    found.add(load(folder).model.numerics)
    assert len(found) == 4


def test_numerics_of_equal_files_are_equal_wherever_they_lie(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    assert load(folder).model.numerics == load(tmp_path / "copy").model.numerics
    assert load(folder, threads=2).model.numerics == load(folder).model.numerics


def test_changed_weights_change_the_revision(folder: Path) -> None:
    before = load(folder).model
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, folder / "model.safetensors")
    after = load(folder).model
    assert before.revision != after.revision
    assert before.numerics != after.numerics


def test_nothing_there_is_not_found(tmp_path: Path) -> None:
    for spec in (
        str(tmp_path),
        str(tmp_path / "missing"),
        "./missing",
        "no-such-model",
        str(tmp_path / "x.gguf"),
    ):
        with pytest.raises(NotFound):
            load_engine(spec, threads=1)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(NotFound, match=name):
        load(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe\x00"])
def test_a_broken_file_is_refused_and_named(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(InvalidRequest, match=name) as caught:
        load(folder)
    assert caught.value.reason == "BROKEN_MODEL"


def test_truncated_weights_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InvalidRequest, match=r"model\.safetensors"):
        load(folder)


def test_a_missing_or_misshapen_tensor_is_named(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    misshapen = weights | {"model.norm.weight": weights["model.norm.weight"][:-1].clone()}
    save_file(misshapen, folder / "model.safetensors")
    with pytest.raises(InvalidRequest, match=r"model\.norm\.weight"):
        load(folder)
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(InvalidRequest, match=r"layers\.0\.mlp\.up_proj"):
        load(folder)


def test_a_missing_configuration_field_is_named(folder: Path) -> None:
    content = json.loads((folder / "config.json").read_text())
    del content["num_attention_heads"]
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(InvalidRequest, match="num_attention_heads"):
        load(folder)


def test_an_unknown_architecture_is_refused_by_name(folder: Path) -> None:
    edit_config(folder, model_type="no-such-type")
    with pytest.raises(InvalidRequest, match="no-such-type") as caught:
        load(folder)
    assert caught.value.reason == "UNSUPPORTED_MODEL"


def test_a_model_without_attention_is_refused_by_name(family: Callable[[str], Path]) -> None:
    with pytest.raises(InvalidRequest, match="Mamba") as caught:
        load(family("mamba"))
    assert caught.value.reason == "UNSUPPORTED_MODEL"


def test_attention_that_looks_ahead_is_refused_by_name(family: Callable[[str], Path]) -> None:
    with pytest.raises(InvalidRequest, match="BertLMHeadModel: attention that looks ahead") as caught:
        load(family("bert"))
    assert caught.value.reason == "UNSUPPORTED_MODEL"


def test_transformers_never_makes_up_missing_weights(family: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(family("gpt2"), tmp_path / "m")
    weights = load_file(tmp_path / "m" / "model.safetensors")
    del weights["transformer.h.1.mlp.c_fc.weight"]
    save_file(weights, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InvalidRequest, match=r"h\.1\.mlp\.c_fc") as caught:
        load(tmp_path / "m")
    assert caught.value.reason == "BROKEN_MODEL"


def test_remote_code_is_never_run(folder: Path) -> None:
    (folder / "evil.py").write_text("raise SystemExit('ran')\n")
    edit_config(
        folder, model_type="evil", auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}
    )
    with pytest.raises(InvalidRequest):
        load(folder)


def test_pickled_weights_are_not_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(NotFound, match="only safetensors"):
        load(folder)


def test_a_context_never_exceeds_a_sliding_window(family: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(family("mistral"), tmp_path / "m")
    edit_config(tmp_path / "m", sliding_window=100)
    assert load(tmp_path / "m").model.max_context == 100
    edit_config(tmp_path / "m", sliding_window=None)
    assert load(tmp_path / "m").model.max_context == 512


def test_qwens_unused_window_is_no_limit(family: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(family("qwen3"), tmp_path / "m")
    edit_config(tmp_path / "m", sliding_window=100, use_sliding_window=False)
    assert read_config(tmp_path / "m").max_context == 512
    edit_config(tmp_path / "m", use_sliding_window=True, layer_types=["full_attention", "sliding_attention"])
    assert read_config(tmp_path / "m").max_context == 100


def test_a_pool_smaller_than_a_context_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="512 positions") as caught:
        load(folder, pool_bytes=10_000)
    assert caught.value.field == "pool_bytes"


def test_an_unknown_dtype_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="int3"):
        load(folder, dtype="int3")


def test_weights_in_several_files_are_found_by_their_index(folder: Path) -> None:
    expected = load(folder).model.vocab_size
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shards = {"a.safetensors": {}, "b.safetensors": {}}
    for i, (name, tensor) in enumerate(weights.items()):
        shards["ab"[i % 2] + ".safetensors"][name] = tensor
    for name, shard in shards.items():
        save_file(shard, folder / name)
    index = {name: file for file, shard in shards.items() for name in shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert load(folder).model.vocab_size == expected
    (folder / "b.safetensors").unlink()
    with pytest.raises(NotFound, match=r"b\.safetensors"):
        load(folder)


def test_progress_names_steps_of_loading_and_leaves_ready_to_the_service(folder: Path) -> None:
    seen: list[tuple[str, float]] = []
    load(folder, progress=lambda what, fraction: seen.append((what, fraction)))
    assert seen[-2:] == [("probing", 0.0), ("probing", 1.0)]
    assert "ready" not in dict(seen)
    assert ("loading weights", 1.0) in seen
    assert all(0 <= fraction <= 1 for _, fraction in seen)
