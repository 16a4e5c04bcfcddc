"""Wrong flags cost one clear error and exit 2; what cannot be reached, one message and exit 1."""

import socket

import pytest

from forerun.cli.main import COMMANDS, main


@pytest.fixture
def forerun(monkeypatch, capsys):
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["forerun", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return call


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-tokens", "0"], "max_tokens must be between 1"),
        (["--max-tokens", "many"], "--max-tokens"),
        (["--temperature", "-1"], "sampling.temperature must be between 0 and 100"),
        (["--temperature", "nan"], "sampling.temperature must be between 0 and 100"),
        (["--top-p", "0"], "top_p must be above 0"),
        (["--top-p", "1.5"], "sampling.top_p must be between 0 and 1"),
        (["--top-k", "-3"], "sampling.top_k"),
        (["--min-p", "2"], "sampling.min_p"),
        (["--seed", "-1"], "seed must be between 0"),
        (["--seed", str(1 << 64)], "seed must be between 0"),
        (["--acceptance", "always"], "--acceptance"),
        (["--stop", ""], "stop string"),
        ([flag for number in range(17) for flag in ("--stop", str(number))], "at most 16"),
        (["--logprobs", "3"], "No such option"),
    ],
)
def test_generate_refuses_a_wrong_flag_before_anything_starts(forerun, flags, message):
    status, out, err = forerun("generate", "hello", *flags)
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_generate_refuses_an_empty_prompt(forerun):
    status, _, err = forerun("generate", "")
    assert status == 2
    assert "the prompt is empty" in err


def test_a_gateway_that_is_not_there_is_one_message(forerun):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        for command in (["generate", "hello"], ["replay", "some-session"]):
            status, out, err = forerun(*command, "--gateway", address)
            assert (status, out) == (1, "")
            assert err.startswith("forerun: ")
            assert "Traceback" not in err


def test_up_names_the_flag_of_a_busy_port(forerun):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        address = f"127.0.0.1:{busy.getsockname()[1]}"
        status, out, err = forerun("up", "--http", address)
    assert (status, out) == (1, "")
    assert err.startswith(f"forerun: cannot listen on {address}")
    assert "--http" in err


def test_an_audit_at_a_temperature_needs_a_seed(forerun, tmp_path):
    status, _, err = forerun("audit", "--prompts", str(tmp_path / "p"), "--temperature", "1")
    assert status == 2
    assert "--seed" in err


def test_an_audit_without_its_file_is_one_message(forerun, tmp_path):
    status, _, err = forerun("audit", "--prompts", str(tmp_path / "p"))
    assert status == 1
    assert err.startswith("forerun: cannot read")


def test_an_unknown_command_is_refused(forerun):
    status, _, err = forerun("fly")
    assert status == 2
    assert "fly" in err


def test_every_command_explains_itself(forerun):
    status, out, _ = forerun("--help")
    assert status == 0
    assert all(name in out for name in COMMANDS)
    for name in COMMANDS:
        status, out, _ = forerun(name, "--help")
        assert status == 0
        assert "Usage: forerun" in out
