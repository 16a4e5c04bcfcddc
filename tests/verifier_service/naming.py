"""An engine that names greedy and keyed tokens itself, as one does whose logits lie on a device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.core.noise import keyed_draw
from forerun.core.sampling import argmax
from forerun.core.types import Logits, Said, Sampler
from forerun.engine.interface import Segment
from tests.verifier_service.watched import Watched


class Naming(Watched):
    """Returns token ids wherever a segment has a sampler. The model behind it is real."""

    def forward(self, segments: Sequence[Segment]) -> list[Said]:
        said = super().forward(segments)
        return [
            rows if one.sampler is None else _named(one, one.sampler, rows)
            for one, rows in zip(segments, said, strict=True)
        ]


def _named(segment: Segment, sampler: Sampler, rows: Said) -> Said:
    first = segment.start + len(segment.token_ids) - segment.num_logits + 1
    return np.array([_token(sampler, row, first + i) for i, row in enumerate(rows)], np.int64)


def _token(sampler: Sampler, logits: Logits, position: int) -> int:
    if sampler.sampling.temperature == 0:
        return argmax(logits)
    return keyed_draw(logits, sampler.sampling, sampler.key, position)
