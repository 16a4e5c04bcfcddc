"""What a pass reads on the device is what its rows say, and padding reads and writes the scratch block alone."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.engine.cuda.pass_inputs import PassInputs, groups
from forerun.engine.rows import Rows


@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=8), most=st.integers(1, 9))
def test_groups_cover_every_row_once_and_never_two_sessions(lengths: list[int], most: int) -> None:
    segments = np.repeat(np.arange(len(lengths)), lengths)
    first_rows, counts = groups(segments, most)
    assert counts.min() >= 1
    assert counts.max() <= most
    covered = [
        row for first, count in zip(first_rows, counts, strict=True) for row in range(first, first + count)
    ]
    assert covered == list(range(len(segments)))
    for first, count in zip(first_rows, counts, strict=True):
        assert len(set(segments[first : first + count])) == 1
    assert len(counts) == sum(-(-length // most) for length in lengths)


@pytest.fixture
def inputs() -> PassInputs:
    return PassInputs(max_rows=8, max_context=64, scratch_block=9, rows_a_group=2, device=torch.device("cpu"))


def test_rows_are_followed_by_padding_in_the_scratch_block(inputs: PassInputs) -> None:
    tables = np.array([[3, 0], [5, 7]], np.int32)
    inputs.fill(
        Rows(
            np.array([1, 2, 3], np.int32),
            np.array([2, 16, 17], np.int32),
            np.array([0, 1, 1], np.int32),
            tables,
            np.array([0], np.int32),
        )
    )
    assert inputs.token_ids.tolist() == [1, 2, 3, 0, 0, 0, 0, 0]
    assert inputs.slots.tolist() == [3 * 16 + 2, 7 * 16, 7 * 16 + 1] + [9 * 16] * 5
    assert inputs.positions.tolist() == [2, 16, 17] + [0] * 5
    assert inputs.segments.tolist() == [0, 1, 1] + [8] * 5
    assert inputs.tables[8].tolist() == [9, 9, 9, 9]
    assert inputs.tables[:2, :2].tolist() == tables.tolist()
    assert inputs.group_rows.tolist()[:2] == [0, 1]
    assert inputs.group_counts.tolist() == [1, 2, 0, 0, 0, 0, 0, 0]
    assert inputs.longest == 18


def test_a_shorter_pass_leaves_nothing_of_the_one_before(inputs: PassInputs) -> None:
    every = np.arange(8, dtype=np.int32)
    inputs.fill(Rows(every + 1, every, np.zeros(8, np.int32), np.array([[4]], np.int32), every))
    one = np.array([5], np.int32)
    inputs.fill(Rows(one, one * 0, one, np.array([[1], [1], [1], [1], [1], [6]], np.int32), one * 0))
    assert inputs.token_ids.tolist() == [5] + [0] * 7
    assert inputs.slots.tolist() == [6 * 16] + [9 * 16] * 7
    assert inputs.group_counts.tolist() == [1] + [0] * 7
    assert int(inputs.tables[0, 0]) == 6
