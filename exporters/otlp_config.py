"""Where and how OTLP is sent: the standard `OTEL_EXPORTER_OTLP_*` variables, and options that win over them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from raxol_otel.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["OtlpConfig", "Protocol"]

Protocol = Literal["http/protobuf", "grpc"]

_PROTOCOLS: Final[tuple[Protocol, ...]] = ("http/protobuf", "grpc")
_COMPRESSIONS: Final = ("none", "gzip", "deflate")
_DEFAULT_ENDPOINTS: Final = {"http/protobuf": "http://localhost:4318", "grpc": "http://localhost:4317"}
_TRACES_PATH: Final = "/v1/traces"
_DEFAULT_TIMEOUT_SECONDS: Final = 10.0
# The specification counts milliseconds, the Python SDK seconds; nobody waits a thousand seconds for one batch.
_MILLISECONDS_FROM: Final = 1000.0
# A field name of HTTP.
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_HINT: Final = "use http://localhost:4318 or the like"


class _Setting(NamedTuple):
    """A value and where it was given: an option or a variable."""

    value: str
    where: str


@dataclass(frozen=True, slots=True)
class OtlpConfig:
    """One OTLP endpoint. `endpoint` is the whole URL (gRPC: scheme, host and port); `timeout` is in seconds a request.

    `certificate`, `client_key` and `client_certificate` are paths of PEM files.
    """

    endpoint: str
    protocol: Protocol = "http/protobuf"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout: float = _DEFAULT_TIMEOUT_SECONDS
    compression: str = "none"
    certificate: str | None = None
    client_key: str | None = None
    client_certificate: str | None = None

    @property
    def is_secure(self) -> bool:
        """Whether the connection is encrypted."""
        return urlsplit(self.endpoint).scheme == "https"

    @property
    def host(self) -> str:
        """Host and port, for gRPC's target; 443 and 80 are the schemes' ports."""
        parts = urlsplit(self.endpoint)
        host = parts.hostname or ""
        port = parts.port or (443 if self.is_secure else 80)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @classmethod
    def resolve(  # noqa: PLR0917 - one parameter an option
        cls,
        endpoint: str | None = None,
        protocol: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        compression: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> OtlpConfig:
        """The options where given, else the variables for traces, else those for all signals, else the defaults.

        Raises `UsageError` for a value that cannot be used, naming where it comes from.
        """
        variables = os.environ if environment is None else environment
        chosen = _protocol(_setting(protocol, "--protocol", variables, "PROTOCOL"))
        key, certificate = _file(variables, "CLIENT_KEY"), _file(variables, "CLIENT_CERTIFICATE")
        if (key is None) != (certificate is None):
            missing, given = ("CERTIFICATE", "KEY") if certificate is None else ("KEY", "CERTIFICATE")
            raise UsageError(
                f"OTEL_EXPORTER_OTLP_CLIENT_{given} is set without OTEL_EXPORTER_OTLP_CLIENT_{missing}",
                "a client authenticates with both",
            )
        if timeout is not None and not 0 < timeout < float("inf"):
            raise UsageError(f"--timeout {timeout:g} is no time to wait")
        return cls(
            endpoint=_endpoint(endpoint, chosen, variables),
            protocol=chosen,
            headers={**_headers(_setting(None, "", variables, "HEADERS")), **(headers or {})},
            timeout=_timeout(_setting(None, "", variables, "TIMEOUT")) if timeout is None else timeout,
            compression=_compression(_setting(compression, "--compression", variables, "COMPRESSION")),
            certificate=_file(variables, "CERTIFICATE"),
            client_key=key,
            client_certificate=certificate,
        )


def _setting(option: str | None, name: str, variables: Mapping[str, str], variable: str) -> _Setting | None:
    """The option, else the variable for traces, else the one for all signals; empty counts as not given."""
    if option is not None:
        return _Setting(option, name)
    for key in (f"OTEL_EXPORTER_OTLP_TRACES_{variable}", f"OTEL_EXPORTER_OTLP_{variable}"):
        value = variables.get(key, "").strip()
        if value:
            return _Setting(value, key)
    return None


def _protocol(setting: _Setting | None) -> Protocol:
    if setting is None:
        return "http/protobuf"
    for known in _PROTOCOLS:
        if setting.value == known:
            return known
    raise UsageError(f"{setting.where}: {setting.value!r} is no known protocol", f"use {' or '.join(_PROTOCOLS)}")


def _compression(setting: _Setting | None) -> str:
    if setting is None:
        return "none"
    if setting.value not in _COMPRESSIONS:
        raise UsageError(
            f"{setting.where}: {setting.value!r} is no known compression", f"use {', '.join(_COMPRESSIONS)}"
        )
    return setting.value


def _timeout(setting: _Setting | None) -> float:
    if setting is None:
        return _DEFAULT_TIMEOUT_SECONDS
    try:
        value = float(setting.value)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(
            f"{setting.where}: {setting.value!r} is no time to wait", "use seconds, or milliseconds from 1000 on"
        )
    return value / 1000 if value >= _MILLISECONDS_FROM else value


def _headers(setting: _Setting | None) -> dict[str, str]:
    """`key=value,key=value` with URL-encoded values, as in W3C baggage. Values may be secrets and are never told."""
    found: dict[str, str] = {}
    for member in setting.value.split(",") if setting is not None else ():
        if not member.strip():
            continue
        key, equals, value = member.partition("=")
        name, text = unquote(key.strip()).lower(), unquote(value.strip())
        if not equals or not _HEADER_NAME.fullmatch(name) or not text.isascii() or (text and not text.isprintable()):
            where = setting.where if setting is not None else ""
            raise UsageError(f"{where} has a member that is no header", "a header is NAME=VALUE, URL-encoded")
        found[name] = text
    return found


def _file(variables: Mapping[str, str], name: str) -> str | None:
    setting = _setting(None, "", variables, name)
    if setting is None:
        return None
    try:
        with open(setting.value, "rb"):  # noqa: PTH123 - to see whether it can be
            return setting.value
    except (OSError, ValueError) as error:
        raise UsageError(f"{setting.where} names {setting.value}, which cannot be read") from error


def _endpoint(option: str | None, protocol: Protocol, variables: Mapping[str, str]) -> str:
    """The URL to send to. Only the variable for traces is taken as it is; a base URL gets `/v1/traces` over HTTP."""
    setting = _setting(option, "--endpoint", variables, "ENDPOINT")
    if setting is None:
        setting = _Setting(_DEFAULT_ENDPOINTS[protocol], "the default")
    url = setting.value
    if protocol == "grpc" and "://" not in url:
        insecure = _setting(None, "", variables, "INSECURE")
        is_insecure = insecure is not None and insecure.value.lower() == "true"
        url = f"{'http' if is_insecure else 'https'}://{url}"
    parts = _split(url)
    if parts is not None and "@" in parts.netloc:
        # Told without the URL: a password in it would end up in logs.
        raise UsageError(f"{setting.where} holds a user or password", "use --header authorization=...")
    if parts is None:
        raise UsageError(f"{setting.where}: {setting.value!r} is no http or https URL", _HINT)
    is_whole = setting.where.endswith("TRACES_ENDPOINT") or (option is not None and parts.path not in {"", "/"})
    if protocol == "grpc" or is_whole:
        return url
    return parts._replace(path=parts.path.rstrip("/") + _TRACES_PATH).geturl()


def _split(url: str) -> SplitResult | None:
    """The parts of an http or https URL; None when it is none."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        valid = parts.scheme in {"http", "https"} and bool(host) and ".." not in host and parts.port != 0
    except ValueError:
        return None
    return parts if valid and url.isprintable() and " " not in url else None
