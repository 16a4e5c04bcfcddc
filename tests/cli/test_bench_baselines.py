"""The baselines answer what was asked, at its exact length, alone or many at a time."""

import sys
from types import ModuleType

import pytest

from forerun.cli.bench import llama
from forerun.cli.bench.bare_engine import BareEngine
from forerun.cli.bench.baseline import Ask
from forerun.cli.bench.hf_generate import TransformersGenerate, load_model
from forerun.engine.load import load_engine
from forerun.engine.random_model import save_tiny_model
from tests.engine.tiny_gguf import write_gguf

ASKS = [
    Ask((1, 2, 3), 6),
    Ask(tuple(range(10, 40)), 9),
    Ask((7, 8), 3),
    Ask(tuple(range(50, 55)), 5),
    Ask((9, 9, 4), 7),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder)
    return folder


@pytest.fixture(scope="module")
def bare(folder):
    return BareEngine(load_engine(str(folder), dtype="float32", threads=1)[0], 1)


@pytest.fixture(scope="module")
def weights(folder):
    return load_model(str(folder), "float32")


def texts(done) -> list[tuple[int, ...]]:
    return [one.token_ids for one in done.answers]


def test_the_bare_engine_says_the_same_alone_and_in_a_crowd(bare):
    alone = bare.answers(ASKS, 1)
    crowd = bare.answers(ASKS, 3)
    assert [len(text) for text in texts(alone)] == [ask.num_tokens for ask in ASKS]
    assert texts(crowd) == texts(alone)
    assert alone.tokens == sum(ask.num_tokens for ask in ASKS)


def test_the_bare_engine_counts_only_while_everyone_is_busy(bare):
    assert 0 < bare.answers(ASKS, 3).tokens < sum(ask.num_tokens for ask in ASKS)


def test_a_prompt_longer_than_a_pass_is_fed_in_pieces(bare):
    long = Ask(tuple(index % 60 for index in range(400)), 4)
    assert texts(bare.answers([long, *ASKS], 6))[1:] == texts(bare.answers(ASKS, 1))


def test_transformers_says_the_engines_text_alone_and_padded_on_the_left(bare, weights):
    baseline = TransformersGenerate(weights, 1)
    expected = texts(bare.answers(ASKS, 1))
    assert texts(baseline.answers(ASKS, 1)) == expected
    batched = baseline.answers(ASKS, 3)
    assert texts(batched) == expected
    # Two batches, of three and of two, each as long as its longest answer.
    assert batched.tokens == 3 * 9 + 2 * 7


def test_transformers_takes_the_gguf_file_that_the_engine_takes(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    write_gguf(folder, tmp_path / "tiny.gguf")
    baseline = TransformersGenerate(load_model(str(tmp_path / "tiny.gguf"), "float32"), 1)
    engine = load_engine(str(tmp_path / "tiny.gguf"), dtype="float32", threads=1)[0]
    assert texts(baseline.answers(ASKS, 1)) == texts(BareEngine(engine, 1).answers(ASKS, 1))


def test_transformers_prompt_lookup_says_the_same_text_one_at_a_time(bare, weights):
    baseline = TransformersGenerate(weights, 1, prompt_lookup=True)
    assert baseline.most_sessions == 1
    assert texts(baseline.answers(ASKS, 1)) == texts(bare.answers(ASKS, 1))


def test_the_first_token_comes_before_the_last(bare, weights):
    for baseline in (bare, TransformersGenerate(weights, 1)):
        for one in baseline.answers(ASKS[:2], 1).answers:
            assert 0 < one.first_token_s < one.seconds


def test_llama_cpp_is_left_out_with_a_reason(monkeypatch):
    monkeypatch.setattr(llama, "find_spec", lambda name: None)
    assert llama.why_not("model.gguf") == "llama-cpp-python is not installed"
    monkeypatch.setattr(llama, "find_spec", lambda name: object())
    assert llama.why_not("/a/folder") == "/a/folder is no GGUF file"
    assert llama.why_not("model.gguf") is None


def test_llama_cpp_is_asked_greedily_for_the_exact_length(monkeypatch):
    package, asked = ModuleType("llama_cpp"), []

    class Llama:
        def __init__(self, path, **options):
            asked.append((path, options["n_threads"]))

        def generate(self, ids, *, temp, repeat_penalty):
            asked.append((ids, temp, repeat_penalty))
            while True:
                yield len(ids)

    package.Llama = Llama
    monkeypatch.setitem(sys.modules, "llama_cpp", package)
    done = llama.LlamaCpp("model.gguf", 2).answers(ASKS[:2], 1)
    assert texts(done) == [(3,) * 6, (30,) * 9]
    assert asked == [("model.gguf", 2), ([1, 2, 3], 0.0, 1.0), (list(range(10, 40)), 0.0, 1.0)]
