"""Every core type survives the wire; what a message cannot mean is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.types import (
    DraftMessage,
    Exactness,
    FinishReason,
    Law,
    Mode,
    ModelInfo,
    Origin,
    PassRecord,
    Sampling,
    Settled,
    Snapshot,
    TokenizerFiles,
    Verdict,
)
from forerun.errors import InvalidRequest
from forerun.v1 import verifier_pb2
from forerun.wire import convert

ids = st.integers(0, 2**31 - 1)
id_lists = st.lists(ids, max_size=6).map(tuple)
counts = st.integers(0, 2**31 - 1)
node_ids = st.integers(0, 2**63 - 1)
samplings = st.builds(
    Sampling,
    temperature=st.floats(0, 100),
    top_k=st.integers(0, 2**31),
    top_p=st.floats(0.001, 1),
    min_p=st.floats(0, 1),
)


@given(samplings)
def test_sampling_survives_the_wire(sampling):
    assert convert.sampling_from_proto(convert.sampling_to_proto(sampling)) == sampling


def test_an_unset_top_p_keeps_all():
    assert convert.sampling_from_proto(verifier_pb2.Snapshot().sampling) == Sampling()


@pytest.mark.parametrize("exact", Exactness)
def test_model_survives_the_wire(exact):
    model = ModelInfo("m", "rev", "ab" * 32, 49152, 8192, "numerics", exact, (2, 0))
    assert convert.model_from_proto(convert.model_to_proto(model)) == model


def test_tokenizer_files_survive_the_wire():
    files = TokenizerFiles(b"{}", "{{ messages }}", {"bos_token": "<s>"}, "cd" * 32)
    assert convert.tokenizer_from_proto(convert.tokenizer_to_proto(files)) == files


@given(counts, node_ids, node_ids, id_lists)
def test_draft_survives_the_wire(base, parent, first_id, token_ids):
    draft = DraftMessage(base, parent, first_id, token_ids)
    assert convert.draft_from_proto(convert.draft_to_proto(draft)) == draft


@given(st.dictionaries(ids, st.floats(0, 1, width=32), min_size=1, max_size=64))
def test_a_law_travels_as_exactly_its_float32_values(entries):
    law = Law(np.array(list(entries), dtype=np.int64), np.array(list(entries.values()), dtype=np.float64))
    raw = convert.law_to_proto(law).SerializeToString()
    back = convert.law_from_proto(verifier_pb2.Law.FromString(raw))
    assert back.token_ids.dtype == np.int64
    assert back.probs.dtype == np.float64
    np.testing.assert_array_equal(back.token_ids, law.token_ids)
    np.testing.assert_array_equal(back.probs, law.probs)


@pytest.mark.parametrize("message", [verifier_pb2.Law(), verifier_pb2.Law(token_ids=[1, 2], probs=[1.0])])
def test_a_law_whose_lists_differ_in_length_is_refused(message):
    with pytest.raises(InvalidRequest) as caught:
        convert.draft_from_proto(verifier_pb2.Draft(token_ids=[1], laws=[message]))
    assert (caught.value.reason, caught.value.field) == ("BAD_LAW", "draft.laws")


@given(
    st.builds(
        Verdict,
        base=counts,
        token_ids=id_lists,
        num_drafted=counts,
        num_accepted=counts,
        head_node=node_ids,
        seen_id=node_ids,
        held=counts,
        next_length=counts,
        window=counts,
        finish_reason=st.sampled_from(FinishReason),
        pass_us=node_ids,
    )
)
def test_verdict_survives_the_wire(verdict):
    assert convert.verdict_from_proto(convert.verdict_to_proto(verdict)) == verdict


def test_a_finish_reason_that_does_not_exist_is_refused():
    raw = verifier_pb2.Verdict.FromString(b"\x50\x63")  # field 10 (finish_reason), value 99
    with pytest.raises(InvalidRequest, match="99"):
        convert.verdict_from_proto(raw)


@pytest.mark.parametrize("mode", Mode)
def test_snapshot_survives_the_wire(mode):
    key = bytes(range(32)) if mode is Mode.COUPLED else b""
    snapshot = Snapshot(3, 7, (1, 2, 3), mode, Sampling(0.5, 7, 0.9, 0.1), key, 32, 99, (2,), 4)
    assert convert.snapshot_from_proto(convert.snapshot_to_proto(snapshot)) == snapshot


@pytest.mark.parametrize(
    ("mode", "key", "field"),
    [(0, b"", "snapshot.mode"), (2, b"", "snapshot.noise_key"), (1, b"x" * 32, "snapshot.noise_key")],
)
def test_a_snapshot_without_mode_or_with_a_wrong_key_is_refused(mode, key, field):
    with pytest.raises(InvalidRequest) as caught:
        convert.snapshot_from_proto(verifier_pb2.Snapshot(mode=mode, noise_key=key))
    assert caught.value.field == field


@given(
    st.lists(st.tuples(ids, st.sampled_from(Origin)), max_size=6),
    st.sampled_from(FinishReason),
    st.none()
    | st.builds(PassRecord, plan_token_ids=id_lists, target_token_ids=id_lists, source=st.text(max_size=9)),
)
def test_settled_survives_the_wire_with_and_without_its_pass(tokens, reason, record):
    settled = Settled(5, tuple(t for t, _ in tokens), tuple(o for _, o in tokens), reason, record)
    assert convert.settled_from_proto(convert.settled_to_proto(settled)) == settled


def test_every_count_of_a_pass_lands_in_its_own_field():
    record = PassRecord((1,), (2, 3), *range(4, 9), "ngram", *range(9, 15))
    assert convert.pass_from_proto(convert.pass_to_proto(record)) == record


def test_settled_tokens_without_origins_are_refused():
    with pytest.raises(InvalidRequest, match="origins"):
        convert.settled_from_proto(verifier_pb2.Settled(token_ids=[1]))
