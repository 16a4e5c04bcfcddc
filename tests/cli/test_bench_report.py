"""A bench report puts ratios first and compares like with like."""

import io
import json

import pytest
from rich.console import Console

from forerun.cli.bench.course import Cell, Observation
from forerun.cli.bench.jobs import Job
from forerun.cli.bench.picture import draw
from forerun.cli.bench.report import Measured, category_table, rate_table, ratio_table, summary
from forerun.cli.bench.sample import Answered, Sample
from forerun.cli.prompts import Prompt

JOBS = (Job(Prompt("1", "code", "x"), 4), Job(Prompt("2", "chat", "y"), 4))
LABELS = {"plain": "Forerun, plain", "lookup": "Forerun, look-up", "transformers": "transformers"}
TEXT = (1, 2, 3, 4)


def seen(number, set_up, seconds, ids=TEXT, group="", **more) -> Observation:
    job = JOBS[number % 2]
    answer = Answered(job, tuple(ids), seconds, seconds / 4, **more)
    idle = 0.04 if set_up == "transformers" else None
    return Observation(number, Cell(group, (job,)), set_up, Sample((answer,), len(ids), seconds, idle))


SEEN = [
    seen(0, "plain", 2.0, passes=4),
    seen(0, "lookup", 1.0, passes=2),
    seen(0, "transformers", 4.0),
    seen(1, "lookup", 2.0, passes=4),
    seen(1, "transformers", 4.0, ids=(1, 2, 3, 9)),
    seen(1, "plain", 2.0, passes=4),
]


def measured(
    observations, bench="single", pairs=(("lookup", "plain"), ("plain", "transformers"))
) -> Measured:
    exact = frozenset({"plain", "lookup"})
    return Measured(bench, tuple(observations), LABELS, tuple(pairs), exact, ("a note",), {"cores": 2})


def test_ratios_come_first_and_compare_cell_by_cell():
    report = summary(measured(SEEN))
    assert list(report)[:2] == ["bench", "ratios"]
    first, second = report["ratios"]
    assert first == {
        "group": "", "over": ["lookup", "plain"], "median": 1.5, "least": 1.0, "most": 2.0, "pairs": 2,
    }  # fmt: skip
    assert second["median"] == pytest.approx(2.0)


def test_a_pair_that_did_not_take_part_has_no_ratio():
    report = summary(measured(SEEN, pairs=[("lookup", "llama.cpp"), ("lookup", "plain")]))
    assert [row["over"] for row in report["ratios"]] == [["lookup", "plain"]]


def test_ratios_of_different_groups_are_kept_apart():
    fast = [seen(2, "plain", 2.0, group="8"), seen(2, "lookup", 0.5, group="8")]
    rows = summary(measured([*SEEN, *fast]))["ratios"]
    found = {row["group"]: row["median"] for row in rows if row["over"] == ["lookup", "plain"]}
    assert found == {"": 1.5, "8": 4.0}


def test_every_category_has_its_ratio():
    rows = summary(measured(SEEN))["categories"]
    found = {row["category"]: row["median"] for row in rows if row["over"] == ["lookup", "plain"]}
    assert found == {"code": 2.0, "chat": 1.0}


def test_rates_sum_over_all_cells_in_the_order_of_the_set_ups():
    rows = summary(measured(SEEN))["rates"]
    assert [row["set_up"] for row in rows] == ["plain", "lookup", "transformers"]
    plain, lookup, other = rows
    assert plain["tokens_per_s"] == 2.0
    assert plain["tokens_per_s_after_first"] == 2.0
    assert lookup["tokens_per_pass"] == pytest.approx(8 / 6)
    assert other["tokens_per_pass"] is None
    assert other["idle_services_cpu_share"] == pytest.approx(0.01)
    assert plain["idle_services_cpu_share"] is None


def test_agreement_with_the_plain_text_is_counted_and_demanded_only_of_our_own():
    report = summary(measured(SEEN))
    assert [(row["same_text"], row["answers"]) for row in report["rates"]] == [(2, 2), (2, 2), (1, 2)]
    assert report["identical"]
    wrong = [*SEEN[:3], seen(1, "lookup", 2.0, ids=(1, 2, 3, 9)), *SEEN[4:]]
    assert not summary(measured(wrong))["identical"]


def test_only_texts_that_differ_are_kept():
    samples = summary(measured(SEEN))["samples"]
    kept = [(one["set_up"], one["cell"]) for one in samples if "token_ids" in one["answers"][0]]
    assert kept == [("transformers", 1)]


def test_the_tables_say_the_ratio_of_every_pair_and_the_rate_of_every_set_up():
    report = json.loads(json.dumps(summary(measured(SEEN))))
    console = Console(file=io.StringIO(), width=140)
    for table in (ratio_table(report), category_table(report, ("lookup", "plain")), rate_table(report)):
        console.print(table)
    text = console.file.getvalue()
    for expected in ("1.50x", "1.00-2.00", "code", "2 of 2", "1 of 2", "transformers"):
        assert expected in text


def test_a_pair_that_did_not_run_has_no_table_by_category():
    report = summary(measured(SEEN))
    assert category_table(report, ("colocated", "plain")) is None


@pytest.mark.parametrize(
    ("bench", "group"), [("single", ""), ("load", "8 sessions"), ("latency", "20 ms"), ("worst", "stalled")]
)
def test_every_bench_has_a_picture(tmp_path, bench, group):
    here = [seen(0, name, 1.0, group=group) for name in ("plain", "lookup")]
    report = summary(measured(here, bench=bench, pairs=[("lookup", "plain")]))
    draw(report, tmp_path / "picture.png")
    draw(report, tmp_path / "picture.svg")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "picture.svg").read_bytes()
