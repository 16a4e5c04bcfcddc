"""Wrong flags cost one clear error and exit 2; what cannot be reached or is refused, one message and exit 1."""

import contextlib
import io
import socket
import subprocess
import sys
import threading

import pytest

from forerun.cli.commands import COMMANDS
from forerun.cli.data_dir import claimed
from forerun.cli.launch import free_port
from forerun.cli.main import main
from forerun.errors import InvalidRequest, Unavailable

HOLDER = """
import pathlib, sys
from forerun.cli.data_dir import claimed

with claimed(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""

INTERRUPTED_AT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv = ["forerun", "up"]
from forerun.cli.main import main
main()
"""


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
        (["--max-tokens", "0"], "for --max-tokens: must be at least 1\n"),
        (["--max-tokens", str(1 << 32)], "for --max-tokens: no model's context is that long\n"),
        (["--max-tokens", "many"], "--max-tokens"),
        (["--temperature", "-1"], "for --temperature: must be between 0 and 100\n"),
        (["--temperature", "nan"], "for --temperature: must be between 0 and 100\n"),
        (["--top-p", "0"], "for --top-p: must be above 0\n"),
        (["--top-p", "1.5"], "for --top-p: must be between 0 and 1\n"),
        (["--top-k", "-3"], "for --top-k: must be between 0"),
        (["--min-p", "2"], "for --min-p: must be between 0 and 1\n"),
        (["--seed", "-1"], "for --seed: must be between 0"),
        (["--seed", str(1 << 64)], "for --seed: must be between 0"),
        (["--acceptance", "always"], "--acceptance"),
        (["--stop", ""], "for --stop: a stop string must have"),
        ([flag for number in range(17) for flag in ("--stop", str(number))], "for --stop: 17 stop strings"),
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


def test_generate_refuses_to_have_nothing_to_answer(forerun):
    status, _, err = forerun("generate")
    assert status == 2
    assert "for PROMPT: there is nothing to answer" in err


@pytest.mark.parametrize(
    ("beside", "hint"), [(["hello"], "PROMPT"), (["--max-tokens", "9"], "--max-tokens"), (["--raw"], "--raw")]
)
def test_a_resumed_answer_takes_nothing_that_its_session_has_settled(forerun, beside, hint):
    status, out, err = forerun("generate", "--resume", "some-session", *beside)
    assert (status, out) == (2, "")
    assert f"Invalid value for {hint}: the session has its own" in err


def test_a_gateway_that_is_not_there_is_one_message(forerun):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        for command in (["generate", "hello"], ["generate", "--resume", "s"], ["replay", "some-session"]):
            status, out, err = forerun(*command, "--gateway", address)
            assert (status, out) == (1, "")
            assert err.startswith(f"forerun: the gateway at {address} cannot be used: connection refused (")
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


def test_up_refuses_a_store_that_does_not_answer_before_anything_starts(forerun):
    port = free_port()
    url = f"redis://me:secret@127.0.0.1:{port}/0?password=secret"
    status, out, err = forerun("up", *own_ports(), "--redis-url", url)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"forerun: no Redis or Valkey answers at redis://127.0.0.1:{port}/0 (")
    assert "correct --redis-url" in err
    assert "secret" not in err


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "blah"])
def test_up_refuses_what_is_no_redis_url(forerun, url):
    status, _, err = forerun("up", *own_ports(), "--redis-url", url)
    assert status == 2
    assert f"Invalid value for --redis-url: '{url}' is not a Redis URL\n" in err


@pytest.fixture
def silent_listener(monkeypatch):
    """The default gateway address, where something that is no gateway hangs up on whoever calls."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setattr("forerun.cli.generate.DEFAULT_ADDRESS", address)
        ended = threading.Event()

        def hang_up():
            listener.settimeout(0.1)
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        yield address
        ended.set()
        thread.join()


@pytest.fixture
def no_private_stack(monkeypatch):
    """A private stack is an error that says what it would have served."""

    async def refuse(exits, model, sources):
        raise Unavailable(f"private {model} {sources}")

    monkeypatch.setattr("forerun.cli.generate._private", refuse)


@pytest.mark.usefixtures("no_private_stack")
def test_a_default_gateway_that_cannot_be_used_is_reported(forerun, silent_listener):
    status, out, err = forerun("generate", "hello")
    assert (status, out) == (1, "")
    assert err.startswith(f"forerun: the gateway at {silent_listener} cannot be used: ")


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_gateway_that_is_silent_is_named_where_stderr_is_seen(
    forerun, silent_listener, monkeypatch, is_seen
):
    monkeypatch.setattr("forerun.cli.generate.SILENT_S", 0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_seen)
    _, out, err = forerun("generate", "hello")
    assert out == ""
    assert err.startswith(f"forerun: waiting for the gateway at {silent_listener}\n") == is_seen


@pytest.mark.usefixtures("no_private_stack")
def test_a_private_stack_is_for_those_who_named_no_gateway_and_reach_none(forerun, monkeypatch):
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setattr("forerun.cli.generate.DEFAULT_ADDRESS", address)
    private = "forerun: private tiny ['ngram']\n"
    assert forerun("generate", "hello", "--model", "tiny") == (1, "", private)
    assert f"the gateway at {address} cannot be used" in forerun("generate", "hello", "--api-key", "k")[2]
    assert "mutual TLS needs" in forerun("generate", "hello", "--tls-ca", "ca.pem")[2]


@pytest.mark.parametrize("flag", ["--model", "--source"])
def test_a_running_gateway_takes_no_flag_of_the_private_stack(forerun, silent_listener, flag):
    for where in ([], ["--gateway", "127.0.0.1:1"]):
        status, _, err = forerun("generate", "hello", flag, "ngram", *where)
        assert status == 2
        assert f"Invalid value for {flag}: the gateway at {(where or [silent_listener])[-1]}" in err


def test_a_prompt_that_is_not_utf8_is_one_error(forerun, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8"))
    for arguments in (["caf\udce9"], ["hello", "--stop", "\udce9"], ["-"]):
        status, _, err = forerun("generate", *arguments)
        assert status == 2
        assert "not valid UTF-8" in err


@pytest.mark.parametrize("inside", ["", "folder"])
def test_up_refuses_a_data_dir_that_is_a_file(forerun, tmp_path, inside):
    file = tmp_path / "file"
    file.touch()
    status, _, err = forerun("up", *own_ports(), "--data-dir", str(file / inside))
    assert (status, err) == (
        2,
        f"forerun: cannot keep sessions in {file / inside}: it is not a folder; choose another --data-dir\n",
    )


def test_up_refuses_a_data_dir_that_another_process_has(forerun, tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout.readline() == b"held\n"
        status, _, err = forerun("up", *own_ports(), "--data-dir", str(tmp_path))
        holder.kill()
    assert (status, err.count("\n")) == (1, 1)
    assert err.startswith(f"forerun: another `forerun up` keeps its sessions in {tmp_path}")
    with claimed(tmp_path) as kept:
        assert kept == tmp_path.resolve()


def test_up_names_the_choices_of_fsync(forerun):
    status, _, err = forerun("up", "--fsync", "no")
    assert status == 2
    assert err.endswith("Error: Invalid value for '--fsync': 'no' is not one of always, everysec\n")


def own_ports() -> list[str]:
    return ["--http", f"127.0.0.1:{free_port()}", "--grpc", f"127.0.0.1:{free_port()}"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--grpc", "0.0.0.0:9"], "for --grpc: 0.0.0.0:9 can be reached from other machines"),
        (["--http", "[::]:9"], "for --http: [::]:9 can be reached from other machines"),
        (["--http", "127.0.0.1:9", "--grpc", "127.0.0.1:9"], "for --grpc: port 9 is already that of --http"),
        (["--http", "8180"], "for --http: '8180' is not host:port"),
        (["--http", "127.0.0.1:99999"], "for --http: '127.0.0.1:99999' is not host:port"),
        (["--grpc", "localhost"], "for --grpc: 'localhost' is not host:port"),
    ],
)
def test_up_refuses_doors_it_cannot_open(forerun, flags, message):
    status, _, err = forerun("up", *flags)
    assert status == 2
    assert message in err
    assert ("`forerun gateway`" in err) == ("machines" in message)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("FORERUN_HTTP", "z", "for FORERUN_HTTP: 'z' is not host:port"),
        ("FORERUN_GRPC", "0.0.0.0:9", "for FORERUN_GRPC: 0.0.0.0:9 can be reached from other machines"),
        ("FORERUN_REDIS_URL", "blah", "for FORERUN_REDIS_URL: 'blah' is not a Redis URL"),
    ],
)
def test_up_names_the_variable_that_gave_what_it_refuses(forerun, monkeypatch, variable, value, message):
    for name, address in zip(("FORERUN_HTTP", "FORERUN_GRPC"), own_ports()[1::2], strict=True):
        monkeypatch.setenv(name, address)
    monkeypatch.setenv(variable, value)
    status, _, err = forerun("up")
    assert status == 2
    assert message in err


def test_a_service_names_the_flag_or_the_variable_that_gave_what_it_refuses(forerun, monkeypatch):
    others = ["--verifiers", "127.0.0.1:1", "--redis-url", "redis://127.0.0.1:1/0"]
    assert "--http: 'z' is not host:port" in forerun("gateway", "--http", "z", *others)[2]
    monkeypatch.setenv("FORERUN_HTTP", "z")
    assert "FORERUN_HTTP: 'z' is not host:port" in forerun("gateway", *others)[2]


@pytest.fixture
def nothing_starts(monkeypatch):
    """Whatever would be started is an error of its own."""

    async def refuse(child):
        raise Unavailable(f"{child.name} was to start")

    monkeypatch.setattr("forerun.cli.launch.Child.start", refuse)


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model", "/nope"], "no model '/nope': there is no such folder"),
        (["--model", "./nope"], "no model './nope': there is no such folder"),
        (["--model", "nope.gguf"], "no model 'nope.gguf': there is no such file"),
        (["--source", "foo"], "'foo' is no source; give ngram, model:SPEC or replay:FILE"),
        (["--source", "model:/nope"], "no model '/nope': there is no such folder"),
    ],
)
def test_what_is_no_model_or_source_is_refused_before_anything_starts(
    forerun, monkeypatch, tmp_path, flags, message
):
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setattr("forerun.cli.generate.DEFAULT_ADDRESS", address)
    for command in (["up", *own_ports(), "--data-dir", str(tmp_path)], ["generate", "hello"]):
        assert forerun(*command, *flags) == (2, "", f"forerun: {message}\n")


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    ("drafter", "message"),
    [
        ("foo", "--drafter foo: 'foo' is no source; give ngram, model:SPEC or replay:FILE, or one of "),
        ("replay?error=2", "replay: error is 0 to 1"),
        ("slow:x:model:smollm2", "slow: 'x' is no number of milliseconds"),
        ("stall:model:/nope", "no model '/nope'"),
    ],
)
def test_an_audit_refuses_a_wrong_drafter_before_anything_starts(forerun, drafter, message):
    status, out, err = forerun("audit", "--limit", "1", "--drafter", "ngram", "--drafter", drafter)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    "drafter", ["lookup", "random", "target", "none", "replay", "replay?seed=2", "sync:ngram", "model:tiny"]
)
def test_an_audit_takes_every_drafter_there_is(forerun, tmp_path, drafter):
    model = ("--model", str(tmp_path))
    _, _, err = forerun("audit", "--limit", "1", *model, "--drafter", drafter)
    assert "was to start" in err


def test_up_refuses_a_drafter_beside_no_draft(forerun):
    status, out, err = forerun("up", "--no-draft", "--source", "ngram")
    assert (status, out) == (2, "")
    assert "for --source: --no-draft starts no drafter" in err


@pytest.mark.parametrize("name", ["typer", "forerun.cli.up", "forerun.cli.stack"])
def test_ctrl_c_while_the_command_is_still_being_loaded_is_silent(name):
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT.format(name=name)], capture_output=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")


def test_an_audit_at_a_temperature_needs_a_seed(forerun, tmp_path):
    status, _, err = forerun("audit", "--prompts", str(tmp_path / "p"), "--temperature", "1")
    assert status == 2
    assert "--seed" in err


def test_an_audit_without_its_file_is_one_message(forerun, tmp_path):
    status, _, err = forerun("audit", "--prompts", str(tmp_path / "p"))
    assert status == 2
    assert err.startswith("forerun: cannot read")


@pytest.mark.parametrize(
    "flags",
    [
        ("load", "--sessions", "0,x"),
        ("latency", "--round-trips-ms", "-1"),
        ("single", "--prompts", "/nope"),
        ("single", "--setup", "nope"),
        ("single", "--category", "nope"),
        ("single", "--out", "/proc/nope"),
        ("worst", "--case", "nope"),
        ("single", "--model", "/nope"),
    ],
)
def test_a_bench_refuses_a_value_that_cannot_be_used_as_a_wrong_flag(forerun, monkeypatch, tmp_path, flags):
    monkeypatch.chdir(tmp_path)
    status, out, err = forerun("bench", *flags)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("forerun: ")


@pytest.mark.usefixtures("nothing_starts")
def test_a_cache_that_cannot_be_kept_is_one_line_whatever_is_asked_for(forerun, monkeypatch, tmp_path):
    monkeypatch.setattr("forerun.cli.generate.DEFAULT_ADDRESS", f"127.0.0.1:{free_port()}")
    monkeypatch.setenv("FORERUN_CACHE", "/proc/nope")
    folder = ("--model", str(tmp_path))
    message = "the cache cannot be kept in /proc/nope: No such file or directory; name another folder in FORERUN_CACHE"
    for command in (
        ("generate", "hi"), ("generate", "hi", *folder), ("up", *own_ports()), ("model",), ("demo",),
        ("up", *own_ports(), "--data-dir", str(tmp_path), *folder), ("audit",), ("audit", *folder),
        ("bench", "single", "--out", str(tmp_path)), ("verifier", "--listen", "127.0.0.1:0"),
    ):  # fmt: skip
        assert forerun(*command) == (2, "", f"forerun: {message}\n"), command


@pytest.mark.usefixtures("nothing_starts")
def test_what_a_private_gateway_refuses_has_the_status_of_any_gateways_refusal(forerun, monkeypatch):
    async def private(exits, model, sources):
        return None

    async def refuse(*_):
        raise InvalidRequest("too long", field="max_tokens")

    monkeypatch.setattr("forerun.cli.generate.DEFAULT_ADDRESS", f"127.0.0.1:{free_port()}")
    monkeypatch.setattr("forerun.cli.generate._private", private)
    monkeypatch.setattr("forerun.cli.generate._stream", refuse)
    assert forerun("generate", "hi") == (1, "", "forerun: too long\n")


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
