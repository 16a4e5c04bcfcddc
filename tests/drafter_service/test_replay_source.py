"""A replay says the known text, with exactly the faults it was asked for."""

from __future__ import annotations

import json

import pytest

from drafter_service.sources.load import open_source
from drafter_service.sources.replay import Faults, ReplaySource, replay_from
from drafter_service.sources.source import Ask
from forerun.errors import InvalidRequest

TEXT = list(range(100, 200))


def ask(token_ids, length=4, key="s"):
    return Ask(key, tuple(token_ids), len(token_ids), length, proposer=None, branch=0)


async def test_without_faults_the_right_text_is_replayed_to_its_end():
    source = ReplaySource([[1, 2, 3], TEXT], Faults())
    (drawn,) = await source.draw([ask(TEXT[:10])])
    assert (drawn.token_ids, drawn.delay_s, drawn.ends) == (tuple(TEXT[10:14]), 0.0, False)
    (drawn,) = await source.draw([ask(TEXT[:98])])
    assert (drawn.token_ids, drawn.ends) == (tuple(TEXT[98:]), True)


async def test_each_session_follows_the_text_it_began_like():
    source = ReplaySource([[1, 2, 3, 4], [1, 2, 9, 8], TEXT], Faults())
    drawn = await source.draw([ask([1, 2, 9], 1, "a"), ask([1, 2, 3], 1, "b"), ask(TEXT[:3], 1, "c")])
    assert [one.token_ids for one in drawn] == [(8,), (4,), (103,)]


async def test_errors_come_at_the_rate_asked_for_and_are_other_tokens_of_the_file():
    source = ReplaySource([TEXT], Faults(error_rate=0.2, seed=3))
    wrong = 0
    for _ in range(50):
        (drawn,) = await source.draw([ask(TEXT[:10], length=90)])
        assert set(drawn.token_ids) <= set(TEXT)
        wrong += sum(a != b for a, b in zip(drawn.token_ids, TEXT[10:], strict=True))
    assert 0.17 < wrong / (50 * 90) < 0.23


async def test_delays_are_random_up_to_the_limit():
    source = ReplaySource([TEXT], Faults(delay_ms=30))
    delays = [(await source.draw([ask(TEXT[:10])]))[0].delay_s for _ in range(200)]
    assert 0 <= min(delays) < 0.005
    assert 0.025 < max(delays) <= 0.03


async def test_the_same_seed_gives_the_same_faults():
    answers = []
    for _ in range(2):
        source = ReplaySource([TEXT], Faults(0.5, 10, 7))
        answers.append([await source.draw([ask(TEXT[:n])]) for n in range(1, 9)])
    assert answers[0] == answers[1]


async def test_a_file_and_its_settings_are_read(tmp_path):
    path = tmp_path / "texts.jsonl"
    lines = [{"prompt_token_ids": [1, 2], "token_ids": [3, 4]}, {"token_ids": [5, 6, 7]}]
    path.write_text("\n".join(map(json.dumps, lines)))
    async with open_source(f"replay:{path}?error=0&delay_ms=0&seed=4", None) as source:
        first, second = await source.draw([ask([1, 2], 9, "a"), ask([5], 9, "b")])
    assert (first.token_ids, second.token_ids) == ((3, 4), (6, 7))


@pytest.mark.parametrize(
    "query", ["error=2", "error=x", "delay_ms=-1", "delay_ms=inf", "erorr=0.1", "error=nan"]
)
def test_settings_that_mean_nothing_are_refused(tmp_path, query):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"token_ids": [1]}\n')
    with pytest.raises(InvalidRequest, match="replay"):
        replay_from(f"{path}?{query}")


@pytest.mark.parametrize("line", ["[1, 2]", "{}", '{"token_ids": ["x"]}', "nonsense", '{"token_ids": 3}'])
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"token_ids": [1]}\n' + line)
    with pytest.raises(InvalidRequest, match="line 2"):
        replay_from(str(path))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidRequest, match=r"nowhere\.jsonl"):
        replay_from(str(tmp_path / "nowhere.jsonl"))


@pytest.mark.parametrize("spec", ["", "ngrams", "model:", "replay:", "model"])
async def test_a_source_that_does_not_exist_is_refused(spec):
    with pytest.raises(InvalidRequest) as caught:
        async with open_source(spec, None):
            pass
    assert caught.value.field == "source"
