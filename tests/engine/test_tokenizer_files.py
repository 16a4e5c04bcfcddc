"""Fingerprints see the vocabulary and nothing else; end tokens come from wherever a folder names them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models

from forerun.engine.random_model import save_tiny_model
from forerun.engine.tokenizer_files import end_token_ids, read_tokenizer, vocab_fingerprint, vocabulary


def words(*names: str, added: tuple[str, ...] = ()) -> bytes:
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token=names[0]))
    tokenizer.add_tokens([AddedToken(name) for name in added])
    return tokenizer.to_str().encode()


def fingerprint(tokenizer_json: bytes) -> str:
    return vocab_fingerprint(vocabulary(tokenizer_json))


def test_fingerprints_differ_where_ids_or_added_tokens_do() -> None:
    tokenizers = [
        words("a", "b"),
        words("b", "a"),
        words("a", "b", added=("c",)),
        words("a", "b", "c", "d"),
        words("ab"),
    ]
    assert len({fingerprint(t) for t in tokenizers}) == len(tokenizers)


def test_fingerprints_are_equal_where_only_the_form_differs() -> None:
    pretty = json.dumps(json.loads(words("a", "b", added=("c",))), indent=3).encode()
    assert fingerprint(pretty) == fingerprint(words("a", "b", added=("c",)))
    assert fingerprint(words("a", "b", added=("c",))) == fingerprint(words("a", "b", "c"))


def test_unigram_vocabularies_are_read_in_order() -> None:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("x", -1.0), ("y", -2.0)], unk_id=0))
    assert vocabulary(tokenizer.to_str().encode()) == {0: "<unk>", 1: "x", 2: "y"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny_model(tmp_path)
    return tmp_path


def ends(folder: Path) -> tuple[int, ...]:
    files = read_tokenizer(folder)
    return end_token_ids(folder, files, vocabulary(files.tokenizer_json))


def test_end_tokens_come_from_generation_configuration_and_tokenizer(folder: Path) -> None:
    assert ends(folder) == (63,)
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 9, 1000]}')
    assert ends(folder) == (5, 9, 63)
    (folder / "generation_config.json").write_text('{"eos_token_id": 4}')
    assert ends(folder) == (4, 63)


def test_special_tokens_are_read_in_both_forms(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text(
        '{"eos_token": {"content": "t7"}, "bos_token": "t3", "unk_token": null}'
    )
    assert read_tokenizer(folder).special_tokens == {"eos_token": "t7", "bos_token": "t3"}


def test_the_chat_template_is_found_in_each_of_its_places(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    assert read_tokenizer(folder).chat_template == ""
    (folder / "chat_template.json").write_text('{"chat_template": "C"}')
    assert read_tokenizer(folder).chat_template == "C"
    (folder / "tokenizer_config.json").write_text(
        '{"chat_template": [{"name": "tool", "template": "T"}, {"name": "default", "template": "B"}]}'
    )
    assert read_tokenizer(folder).chat_template == "B"
    (folder / "tokenizer_config.json").write_text('{"chat_template": "S"}')
    assert read_tokenizer(folder).chat_template == "S"


def test_what_is_read_travels_whole(folder: Path) -> None:
    files = read_tokenizer(folder)
    assert files.tokenizer_json == (folder / "tokenizer.json").read_bytes()
    assert replace(files, vocab_fingerprint="") != files
