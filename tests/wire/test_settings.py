"""A setting is written once, and what is wrong with one is said in a line: where, what, and what would be right."""

from __future__ import annotations

import inspect

import pytest
import typer
from typer.testing import CliRunner

import drafter_service.__main__ as drafter
import gateway.__main__ as gateway
import verifier_service.__main__ as verifier
from forerun.cli.commands import app
from forerun.engine.pool_size import FEWEST_POSITIONS
from forerun.errors import FailedPrecondition, InvalidRequest
from forerun.wire.command import command
from forerun.wire.settings import ServiceSettings, flag_of, read, variable_of

SERVICES = [verifier, drafter, gateway]
NAMES = {verifier: "verifier", drafter: "drafter", gateway: "gateway"}


@pytest.fixture(params=SERVICES, ids=NAMES.get)
def service(request):
    return request.param


def invoke(service, *flags: str):
    """The command as `forerun` runs it; what it serves is not run."""
    return CliRunner().invoke(app, [NAMES[service], *flags])


def test_every_setting_is_a_flag_with_its_default_and_help(service):
    options = {name: field for name, field in service.Settings.model_fields.items() if field.description}
    assert set(options) == set(service.Settings.model_fields)
    assert set(inspect.signature(service.run).parameters) == set(options)
    shown = " ".join(invoke(service, "--help").output.split())
    for name, field in options.items():
        assert f"{flag_of(name)} " in shown
        assert f"{field.description} [env var: {variable_of(name)}" in shown
    assert "; default: 127.0.0.1:" in shown
    assert "[env var: FORERUN_METRICS_PORT; default: 0]" in shown
    assert "[env var: FORERUN_INSECURE; default: no-insecure]" in shown


def test_the_least_kv_pool_is_in_the_help(service):
    shown = " ".join(invoke(service, "--help").output.split())
    assert (f"fewer than {FEWEST_POSITIONS:,} positions is refused" in shown) == ("--kv-pool-mib" in shown)


def test_the_settings_of_all_services_are_written_once():
    for service in SERVICES:
        own = set(vars(service.Settings).get("__annotations__", {}))
        assert own & set(ServiceSettings.model_fields) <= {"grace_s"}


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--metrics-port", "70000"], "--metrics-port 70000 cannot be used: it must be a whole number from 0 to 65535"),
        (["--health-port", "http"], "--health-port http cannot be used: it must be a whole number from 0 to 65535"),
        (["--grace-s", "-1"], "--grace-s -1 cannot be used: it must be a number of at least 0"),
        (["--grace-s", "nan"], "--grace-s nan cannot be used: it must be a number of at least 0"),
        (["--grace-s", "inf"], "--grace-s inf cannot be used: it must be a number of at least 0"),
    ],
)  # fmt: skip
def test_a_bad_flag_of_any_service_is_one_line(service, flags, line):
    ended = invoke(service, *flags)
    assert (ended.exit_code, ended.stderr, ended.stdout) == (2, f"forerun: {line}\n", "")


@pytest.mark.parametrize(
    ("service", "flags", "line"),
    [
        (verifier, ["--max-sessions", "0"], "--max-sessions 0 cannot be used: it must be a whole number of at least 1"),
        (drafter, ["--max-sessions", "x"], "--max-sessions x cannot be used: it must be a whole number of at least 1"),
        (verifier, ["--window", "-1"], "--window -1 cannot be used: it must be a whole number from 0 to 1024"),
        (gateway, ["--lease-s", "0"], "--lease-s 0 cannot be used: it must be a number above 0"),
        (gateway, ["--acceptance", "all"], "--acceptance all cannot be used: it must be auto, rejection or coupled"),
    ],
)  # fmt: skip
def test_a_bad_flag_of_one_service_is_one_line(service, flags, line):
    ended = invoke(service, *flags)
    assert (ended.exit_code, ended.stderr, ended.stdout) == (2, f"forerun: {line}\n", "")


def test_each_bad_variable_is_a_line_of_its_own(monkeypatch):
    monkeypatch.setenv("FORERUN_MAX_SESSIONS", "abc")
    monkeypatch.setenv("FORERUN_INSECURE", "maybe")
    said = invoke(verifier, "--threads", "-2").stderr
    assert sorted(said.splitlines()) == [
        "forerun: --threads -2 cannot be used: it must be a whole number of at least 0",
        "forerun: FORERUN_INSECURE=maybe cannot be used: it must be true or false",
        "forerun: FORERUN_MAX_SESSIONS=abc cannot be used: it must be a whole number of at least 1",
    ]


def test_a_flag_goes_before_a_variable_and_a_variable_before_the_default(monkeypatch):
    assert read(verifier.Settings, {}).max_sessions == 64
    monkeypatch.setenv("FORERUN_MAX_SESSIONS", "3")
    assert read(verifier.Settings, {}).max_sessions == 3
    assert read(verifier.Settings, {"max_sessions": "5"}).max_sessions == 5


def test_switches_are_read_both_ways():
    seen = []

    async def serve(settings: ServiceSettings) -> int:
        seen.append(settings.insecure)
        return 0

    run = command(ServiceSettings, serve, "Serve nothing.")
    for flags in ([], ["--insecure"], ["--no-insecure"]):
        assert CliRunner().invoke(_program(run), flags).exit_code == 0
    assert seen == [False, True, False]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (InvalidRequest("x is no PEM file", field="tls-cert"), "--tls-cert: x is no PEM file"),
        (InvalidRequest("give --tls-cert", field="tls_cert"), "give --tls-cert"),
        (FailedPrecondition("the pool is too small"), "the pool is too small"),
    ],
)
def test_what_cannot_be_served_is_said_after_its_flag(error, line):
    async def serve(settings: ServiceSettings) -> int:
        raise error

    ended = CliRunner().invoke(_program(command(ServiceSettings, serve, "Serve nothing.")))
    assert (ended.exit_code, ended.stderr) == (2, f"forerun: {line}\n")


def test_the_exit_status_is_what_serving_returns():
    async def serve(settings: ServiceSettings) -> int:
        return 7

    assert CliRunner().invoke(_program(command(ServiceSettings, serve, "Serve nothing."))).exit_code == 7


def _program(run):
    program = typer.Typer()
    program.command()(run)
    return program
