"""A bench report puts ratios first and compares like with like."""

import pytest

from forerun.cli.bench.report import picture, summary
from forerun.cli.bench.single import BenchSettings, Measured, Run, messages_of
from forerun.cli.prompts import Prompt

PROMPTS = (Prompt("1", "code", "x"), Prompt("2", "chat", "y"))
SETTINGS = BenchSettings(PROMPTS, max_tokens=4, rounds=1, model="m", dtype="bfloat16")


def run(contestant: str, prompt: Prompt, seconds: float, ids=(1, 2, 3, 4), **more) -> Run:
    return Run(contestant, 0, prompt.prompt_id, prompt.category, tuple(ids), seconds, seconds / 4, **more)


RUNS = [
    run("plain", PROMPTS[0], 2.0, passes=4),
    run("ngram", PROMPTS[0], 1.0, passes=2),
    run("transformers", PROMPTS[0], 4.0, idle_cpu_s=0.04),
    run("plain", PROMPTS[1], 2.0, passes=4),
    run("ngram", PROMPTS[1], 2.0, passes=4),
    run("transformers", PROMPTS[1], 4.0, idle_cpu_s=0.04),
]


def measured(runs) -> Measured:
    return Measured(tuple(runs), {"transformers": 2}, others_cpu_share=0.0)


def test_ratios_compare_prompt_by_prompt():
    report = summary(SETTINGS, measured(RUNS))
    assert next(iter(report)) == "ratios"
    assert set(report["ratios"]) == {"plain/transformers", "ngram/plain", "ngram/transformers"}
    found = report["ratios"]["ngram/plain"]
    assert (found["median"], found["least"], found["most"]) == (1.5, 1.0, 2.0)
    assert report["ratios"]["plain/transformers"]["median"] == pytest.approx(2.0)


def test_rates_sum_over_all_prompts():
    rates = summary(SETTINGS, measured(RUNS))["rates"]
    assert rates["plain"]["tokens_per_s"] == 2.0
    assert rates["plain"]["tokens_per_s_after_first"] == 2.0
    assert rates["ngram"]["tokens_per_pass"] == pytest.approx(8 / 6)
    assert rates["transformers"]["services_cpu_share"] == pytest.approx(0.01)
    assert rates["transformers"]["tokens_per_pass"] is None


def test_a_drafted_text_that_differs_is_reported():
    assert summary(SETTINGS, measured(RUNS))["identical"]
    wrong = [*RUNS[:4], run("ngram", PROMPTS[1], 2.0, ids=(1, 2, 3, 9)), RUNS[5]]
    assert not summary(SETTINGS, measured(wrong))["identical"]


def test_the_picture_is_a_png(tmp_path):
    path = tmp_path / "picture.png"
    picture(summary(SETTINGS, measured(RUNS)), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_later_rounds_find_no_warm_prefix_beyond_the_template():
    first, second, third = (messages_of(PROMPTS[0], number) for number in range(3))
    assert first == (("user", "x"),)
    assert len({first, second, third}) == 3
    assert second[0][0] == "system"
