"""The settings of a service: each one's name, type, range, default and help, written once.

A field of a service's `Settings` is a flag of its command and a variable FORERUN_<NAME>. Those that several services
have are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from forerun.errors import InvalidRequest

ENV_PREFIX = "FORERUN_"

Listen = Annotated[str, Field(description="host:port to listen on")]
Dtype = Annotated[str, Field(description="bfloat16 or float32")]
Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    Field(description="where the model computes: cpu, cuda, or auto, a GPU where one answers"),
]
Threads = Annotated[int, Field(ge=0, description="CPU threads; 0: all cores")]
KvPoolMib = Annotated[
    int,
    Field(
        ge=0,
        description="KV pool in MiB; 0: a share of the device's memory. A pool that does not hold the model's context "
        "lowers it (a verifier's max_model_len); one of fewer than 1,024 positions is refused",
    ),
]
Port = Annotated[int, Field(ge=0, le=65535)]
GraceS = Annotated[float, Field(ge=0, description="seconds to finish what runs after SIGTERM")]

_NOUNS: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}


class ServiceSettings(BaseSettings):
    """What every service can be told."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore", allow_inf_nan=False)

    tls_cert: Path | None = Field(default=None, description="certificate (PEM)")
    tls_key: Path | None = Field(default=None, description="private key (PEM)")
    tls_ca: Path | None = Field(default=None, description="CA of every peer (PEM)")
    insecure: bool = Field(default=False, description="listen beyond loopback without TLS")
    metrics_port: Port = Field(default=0, description="port of Prometheus' /metrics; 0: none")
    health_port: Port = Field(default=0, description="plain health port beside mutual TLS; 0: none")
    otlp_endpoint: str = Field(default="", description="OTLP collector of traces, http://host:port")
    grace_s: GraceS = 30.0


S = TypeVar("S", bound=ServiceSettings)


def read(kind: type[S], flags: Mapping[str, Any]) -> S:
    """The settings: what the flags say, then the variables, then the defaults.

    Raises InvalidRequest with a line for each that is wrong: where it was said, what, and what would be right.
    """
    try:
        return kind(**flags)
    except ValidationError as error:
        lines = [_refusal(kind, wrong, flags) for wrong in error.errors(include_url=False)]
        raise InvalidRequest("\n".join(lines), reason="BAD_SETTING") from None


def type_of(field: FieldInfo) -> type:
    """What a field holds: bool, int, float, str or Path."""
    annotation: Any = field.annotation
    if get_origin(annotation) is Literal:
        return str
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    found: type = kinds[0] if kinds else annotation
    return found


def flag_of(name: str) -> str:
    """The flag of a field."""
    return "--" + name.replace("_", "-")


def _refusal(kind: type[ServiceSettings], wrong: Any, flags: Mapping[str, Any]) -> str:
    name = str(wrong["loc"][0])
    said = f"{flag_of(name)} {wrong['input']}" if name in flags else f"{variable_of(name)}={wrong['input']}"
    return f"{said} cannot be used: it must be {_wanted(kind.model_fields[name])}"


def variable_of(name: str) -> str:
    """The variable of a field."""
    return ENV_PREFIX + name.upper()


def _wanted(field: FieldInfo) -> str:
    """What a value of this field must be, as a person says it."""
    if get_origin(field.annotation) is Literal:
        *others, last = get_args(field.annotation)
        return f"{', '.join(others)} or {last}"
    noun = _NOUNS.get(type_of(field), "text")
    least = next((rule.ge for rule in field.metadata if isinstance(rule, Ge)), None)
    above = next((rule.gt for rule in field.metadata if isinstance(rule, Gt)), None)
    most = next((rule.le for rule in field.metadata if isinstance(rule, Le)), None)
    if least is not None and most is not None:
        return f"{noun} from {least} to {most}"
    if least is not None:
        return f"{noun} of at least {least}"
    return noun if above is None else f"{noun} above {above}"
