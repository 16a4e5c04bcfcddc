"""What a run measures, whichever bench it is."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.cli.prompts import Prompt


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """The flags that all benches share. `set_ups`: names to compare, () for all; plain is always there."""

    prompts: tuple[Prompt, ...]
    max_tokens: int
    repeat: int
    model: str = "smollm2"
    dtype: str = "bfloat16"
    drafter_model: str | None = None
    set_ups: tuple[str, ...] = ()
    round_trip_ms: float = 0.0  # of the network behind which remote drafters sit

    def wants(self, name: str) -> bool:
        """Whether a set-up of this name takes part."""
        return name == "plain" or not self.set_ups or name in self.set_ups
