"""Every bench, over real processes and a tiny random model: its rows have their baselines, its texts agree."""

import asyncio
import io
import json

import pytest
from rich.console import Console

from forerun.cli.bench.field import field
from forerun.cli.bench.jobs import Job
from forerun.cli.bench.latency import run_latency
from forerun.cli.bench.load import run_load
from forerun.cli.bench.picture import draw
from forerun.cli.bench.report import summary
from forerun.cli.bench.settings import BenchSettings
from forerun.cli.bench.setups import REMOTE
from forerun.cli.bench.single import run_single
from forerun.cli.bench.worst import run_worst
from forerun.cli.prompts import Prompt
from forerun.engine.random_model import save_tiny_model
from forerun.errors import InvalidRequest

pytestmark = pytest.mark.processes

CONSOLE = Console(file=io.StringIO())
PROMPTS = tuple(
    Prompt(str(number), category, " ".join(f"t{(7 * number + index) % 60}" for index in range(12)))
    for number, category in enumerate(("rag", "chat"))
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder)
    return str(folder)


def settings(model: str, *set_ups: str, **more) -> BenchSettings:
    return BenchSettings(
        PROMPTS, max_tokens=24, repeat=1, model=model, dtype="float32", set_ups=set_ups, **more
    )


def check(measured, path) -> dict:
    """The report of a run, after all that holds for any."""
    report = json.loads(json.dumps(summary(measured)))
    assert report["identical"]
    here = {(sample["cell"], sample["set_up"]): sample for sample in report["samples"]}
    assert {cell for cell, _ in here} == {cell for cell, name in here if name == "plain"}
    for (cell, _), sample in here.items():
        of_plain = here[cell, "plain"]
        for mine, plain in zip(sample["answers"], of_plain["answers"], strict=True):
            keys = ("prompt_id", "number", "num_tokens")
            assert [mine[key] for key in keys] == [plain[key] for key in keys]
    conditions = report["conditions"]
    assert conditions["cores"] >= 1
    assert conditions["packages"]["torch"]
    assert conditions["threads"]["plain"] == conditions["cores"]
    draw(report, path)
    assert path.stat().st_size > 0
    return report


def over(report: dict, group: str) -> list[list[str]]:
    return [row["over"] for row in report["ratios"] if row["group"] == group]


async def test_single_compares_our_set_ups_with_other_ways_of_generating(tiny, tmp_path):
    asked = settings(tiny, "lookup", "plain-beside", "transformers", "engine", "llama.cpp")
    report = check(await run_single(asked, CONSOLE), tmp_path / "p.png")
    assert over(report, "") == [
        ["plain", "transformers"],
        ["lookup", "plain"],
        ["lookup", "transformers"],
        ["plain", "engine"],
        ["plain-beside", "plain"],
    ]
    assert all(row["pairs"] == len(PROMPTS) for row in report["ratios"])
    by_name = {row["set_up"]: row for row in report["rates"]}
    assert by_name["engine"]["same_text"] == by_name["engine"]["answers"] == len(PROMPTS)
    assert by_name["plain"]["tokens_per_pass"] == 1.0
    assert by_name["plain-beside"]["tokens_per_pass"] == 1.0
    assert any(note.startswith("llama.cpp is left out") for note in report["notes"]) or (
        "llama.cpp" in by_name
    )


async def test_load_keeps_every_session_busy_and_gives_categories_their_figures(tiny, tmp_path):
    asked = settings(tiny, "lookup", "transformers", "transformers-lookup")
    report = check(await run_load(asked, [1, 3], 2, CONSOLE), tmp_path / "p.png")
    for group in ("1 session", "3 sessions"):
        assert over(report, group) == [
            ["plain", "transformers"],
            ["lookup", "plain"],
            ["lookup", "transformers"],
        ]
    figures = {(row["group"], row["category"]) for row in report["categories"]}
    assert figures == {(group, one.category) for group in ("1 session", "3 sessions") for one in PROMPTS}
    # One answer at a time is all that prompt look-up can do.
    assert [row["group"] for row in report["rates"] if row["set_up"] == "transformers-lookup"] == [
        "1 session"
    ]
    for sample in report["samples"]:
        texts = [(answer["prompt_id"], answer["number"]) for answer in sample["answers"]]
        assert len(texts) == len(set(texts)) == 6
        assert 0 < sample["tokens"] <= sum(answer["num_tokens"] for answer in sample["answers"]) + 48


async def test_latency_puts_the_network_between_the_remote_drafters_and_the_verifier(tiny, tmp_path):
    measured = await run_latency(settings(tiny), [4.0], CONSOLE)
    found = over(check(measured, tmp_path / "p.png"), "4 ms")
    assert found[:2] == [["remote", "synchronous"], ["remote", "plain"]]
    assert ["remote", "colocated"] in found


async def test_a_remote_drafter_reaches_its_verifier_through_the_relay(tiny):
    async with field(settings(tiny), CONSOLE) as ground:
        (remote,) = await ground.serve([REMOTE])
        async with asyncio.timeout(60):
            number = 0
            while not remote.relay.num_connections:  # a short answer may be over before the drafter is there
                number += 1
                sample = await remote.run([Job(PROMPTS[0], 300, number)], 1)
        assert sample.tokens == 300


async def test_worst_has_five_pairs_in_every_case(tiny, tmp_path):
    cases = ["stalled"]
    report = check(await run_worst(settings(tiny), cases, 3, CONSOLE), tmp_path / "p.png")
    assert [(row["group"], row["pairs"]) for row in report["ratios"]] == [("stalled", 5)]
    assert {row["set_up"] for row in report["rates"]} == {"plain", "drafting"}
    assert not any("slow drafter" in note for note in report["notes"])


async def test_a_drafter_of_another_vocabulary_is_refused_before_anything_is_measured(tiny, tmp_path):
    save_tiny_model(tmp_path / "other", vocab_size=48)
    asked = settings(tiny, "model", drafter_model=str(tmp_path / "other"))
    with pytest.raises(InvalidRequest, match="has another vocabulary"):
        await run_single(asked, CONSOLE)
