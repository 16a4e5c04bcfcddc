from __future__ import annotations

import pytest

from forerun.errors import InvalidRequest, Unauthenticated
from gateway.api_keys import ApiKeys


def test_without_keys_everybody_may_ask():
    ApiKeys().check(None)
    ApiKeys.from_file(None).check("whatever")


def test_a_file_holds_a_key_a_line(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# team a\nalpha\n\n  beta  \n")
    keys = ApiKeys.from_file(path)
    keys.check("Bearer alpha")
    keys.check("bearer beta")
    for wrong in (None, "", "alpha", "Bearer ", "Bearer gamma", "Bearer # team a", "Basic alpha", "Bearer é"):
        with pytest.raises(Unauthenticated):
            keys.check(wrong)


@pytest.mark.parametrize(
    ("given", "reason", "words"),
    [
        (None, "API_KEY_MISSING", "an API key is needed"),
        ("alpha", "API_KEY_MISSING", "Authorization: Bearer KEY"),
        ("Bearer ", "API_KEY_MISSING", "an API key is needed"),
        ("Bearer gamma", "API_KEY_WRONG", "this API key is not known here"),
    ],
)
def test_a_wrong_key_is_not_called_a_missing_one(given, reason, words):
    with pytest.raises(Unauthenticated) as refused:
        ApiKeys(["alpha"]).check(given)
    assert refused.value.reason == reason
    assert words in refused.value.message
    assert "gamma" not in refused.value.message


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"\xff"])
def test_a_file_without_a_key_is_refused_rather_than_an_open_door(tmp_path, content):
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest):
        ApiKeys.from_file(path)
    with pytest.raises(InvalidRequest):
        ApiKeys.from_file(tmp_path / "absent")
