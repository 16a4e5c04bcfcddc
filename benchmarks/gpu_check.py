"""What one GPU does with the engine: its tests, row invariance, the cost of a pass, speculative decoding; one JSON.

Weights are random and made on the device; nothing is fetched. Acceptance is set by construction: the text says nothing,
its speed does. Each part is skipped, and the report says so, when the minutes are up.

    python -m benchmarks.gpu_check [--minutes 8] [--out results]
    python -m benchmarks.gpu_check --device cpu --size tiny      # the same script where there is no GPU
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.constructed_drafts import Answer, Drafts, generate
from benchmarks.gpu_models import Loaded, Report, Size, choose_size, load
from benchmarks.gpu_pass_costs import pass_costs, random_text
from forerun.engine.pass_times import pass_times
from forerun.engine.probe import probe

ROOT = Path(__file__).resolve().parents[1]
ACCURACIES = (0.0, 0.5, 0.8, 0.95)
TESTS_TIMEOUT_S = 240


class Clock:
    """How much of the minutes is left."""

    def __init__(self, minutes: float) -> None:
        self._end = time.monotonic() + 60 * minutes

    def left_s(self) -> float:
        """Seconds; negative when they are over."""
        return self._end - time.monotonic()


def main() -> None:
    """Run every part for which there is time; write the report after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", choices=("auto", "large", "small", "tiny"), default="auto")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--out", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print(
            "gpu-check: no GPU answers here; nothing was run (--device cpu --size tiny runs it without one)"
        )
        sys.exit(1)
    device = torch.device(arguments.device)
    size = choose_size(arguments.size, device)
    path = arguments.out / f"gpu-check-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    arguments.out.mkdir(parents=True, exist_ok=True)
    report: Report = {"machine": machine(device), "settings": {**vars(arguments), "out": str(arguments.out)}}
    for part, found in parts(size, device, Clock(arguments.minutes)):
        report[part] = found
        path.write_text(json.dumps(report, indent=1, default=str) + "\n", encoding="utf-8")
        show(part, found)
    print(f"written to {path}")
    sys.exit(report.get("tests", {}).get("returncode", 0) not in (0, None))


def machine(device: torch.device) -> Report:
    """What was measured on."""
    found: Report = {"device": device.type, "torch": torch.__version__, "cuda": torch.version.cuda}
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        found |= {
            "card": card.name,
            "memory_gib": round(card.total_memory / 2**30, 1),
            "multiprocessors": card.multi_processor_count,
            "capability": f"{card.major}.{card.minor}",
        }
    return found


def parts(size: Size, device: torch.device, clock: Clock) -> Iterator[tuple[str, Report]]:
    """The parts of the report by name, in order of worth."""
    loaded: dict[str, Loaded] = {}
    for name, config in (("target", size.target), ("drafter", size.drafter)):
        model = loaded[name] = load(config, size, device)
        yield name, model.facts | {"exact": probe(model.engine).value}
        yield f"{name}_pass_ms", pass_costs(model, size, device)
    texts, pass_us = None, pass_times(loaded["target"].engine)
    yield "begins_with_pass_us", {str(rows): round(us) for rows, us in pass_us.items()}
    for sessions in size.sessions:
        cells = []
        for accuracy in ACCURACIES:
            if clock.left_s() < TESTS_TIMEOUT_S * (device.type == "cuda"):
                break
            texts, cell = speculate(loaded, size, sessions, accuracy, texts, pass_us)
            cells.append(cell)
        yield f"speculation_{sessions}", {"cells": cells, "complete": len(cells) == len(ACCURACIES)}
    if device.type == "cuda":
        yield "tests", run_tests(min(TESTS_TIMEOUT_S, clock.left_s()))


def speculate(
    loaded: dict[str, Loaded],
    size: Size,
    sessions: int,
    accuracy: float,
    texts: list[list[int]] | None,
    pass_us: dict[int, float],
) -> tuple[list[list[int]], Report]:
    """Tokens a second plain and drafted, and whether the drafted text is the plain one, token for token."""
    target, drafter = loaded["target"].engine, loaded["drafter"].engine
    vocab = target.model.vocab_size
    prompts = [random_text(32, vocab, 100 + i) for i in range(max(size.sessions))]
    if texts is None:
        texts = [generate(target, [prompt], size.tokens, None, pass_us)[0][0].said for prompt in prompts]
    runs = {
        "plain": None,
        "drafted_elsewhere": Drafts(texts, accuracy, vocab),
        "drafted_here": Drafts(texts, accuracy, vocab, drafter),
    }
    cell: Report = {"sessions": sessions, "accuracy": accuracy}
    for name, drafts in runs.items():
        answers, seconds = generate(target, prompts[:sessions], size.tokens, drafts, pass_us)
        cell[name] = outcome(answers, seconds, texts)
    for name in ("drafted_elsewhere", "drafted_here"):
        cell[name]["gain"] = round(cell[name]["tokens_s"] / cell["plain"]["tokens_s"], 2)
    return texts, cell


def outcome(answers: Sequence[Answer], seconds: float, texts: Sequence[Sequence[int]]) -> Report:
    """What a run of `generate` showed."""
    said = sum(len(answer.said) for answer in answers)
    tested = sum(answer.num_tested for answer in answers)
    return {
        "tokens_s": round(said / seconds, 1),
        "tokens_a_pass": round(said / sum(answer.num_passes for answer in answers), 2),
        "acceptance_rate": round(sum(a.num_accepted for a in answers) / tested, 3) if tested else None,
        "equal": sum(
            a.said[: len(text)] == list(text[: len(a.said)]) for a, text in zip(answers, texts, strict=False)
        ),
        "answers": len(answers),
    }


def run_tests(timeout_s: float) -> Report:
    """The engine's tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/engine"]
    if timeout_s < 10:
        return {"returncode": None, "text": "no time was left"}
    try:
        ran = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return {"returncode": 124, "text": f"not done after {timeout_s:.0f} s"}
    return {"returncode": ran.returncode, "text": (ran.stdout + ran.stderr)[-4000:]}


def show(part: str, found: Report) -> None:
    """One part as a few lines."""
    print(f"== {part}")
    if part.endswith("_pass_ms"):
        print(
            f"{'rows':>6} {'engine':>9} {'no logits':>9} {'products':>9}    reading the weights {found['read']}"
        )
        for rows, ms in found["rows"].items():
            print(f"{rows:>6} {ms['engine']:>9} {ms['without_logits']:>9} {ms['products']:>9}")
    elif part.startswith("speculation"):
        print(f"{'sessions':>8} {'accuracy':>8} {'plain tok/s':>12} {'elsewhere':>10} {'here':>8}   equal")
        for cell in found["cells"]:
            gains = [cell[name]["gain"] for name in ("drafted_elsewhere", "drafted_here")]
            equal = " ".join(
                f"{run['equal']}/{run['answers']}" for run in cell.values() if isinstance(run, dict)
            )
            print(
                f"{cell['sessions']:>8} {cell['accuracy']:>8} {cell['plain']['tokens_s']:>12} "
                f"{gains[0]:>9}x {gains[1]:>7}x   {equal}"
            )
    else:
        print("\n".join(f"{key}: {value}" for key, value in found.items()))


if __name__ == "__main__":
    main()
