"""Where and how OTLP is sent: the standard `OTEL_EXPORTER_OTLP_*` variables, and options that win over them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import unquote, urlsplit

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
        return self.endpoint.startswith("https://")

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
        chosen = _protocol(protocol or _variable(variables, "PROTOCOL") or "http/protobuf")
        return cls(
            endpoint=_endpoint(endpoint, chosen, variables),
            protocol=chosen,
            headers={**_headers(_variable(variables, "HEADERS") or ""), **(headers or {})},
            timeout=_timeout(_variable(variables, "TIMEOUT")) if timeout is None else timeout,
            compression=_compression(compression or _variable(variables, "COMPRESSION") or "none"),
            certificate=_file(variables, "CERTIFICATE"),
            client_key=_file(variables, "CLIENT_KEY"),
            client_certificate=_file(variables, "CLIENT_CERTIFICATE"),
        )


def _variable(variables: Mapping[str, str], name: str) -> str | None:
    for key in (f"OTEL_EXPORTER_OTLP_TRACES_{name}", f"OTEL_EXPORTER_OTLP_{name}"):
        value = variables.get(key, "").strip()
        if value:
            return value
    return None


def _protocol(text: str) -> Protocol:
    for known in _PROTOCOLS:
        if text == known:
            return known
    raise UsageError(f"OTLP protocol {text!r} is not known", f"use {' or '.join(_PROTOCOLS)}")


def _compression(text: str) -> str:
    if text not in _COMPRESSIONS:
        raise UsageError(f"OTLP compression {text!r} is not known", f"use {', '.join(_COMPRESSIONS)}")
    return text


def _timeout(text: str | None) -> float:
    if text is None:
        return _DEFAULT_TIMEOUT_SECONDS
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"OTEL_EXPORTER_OTLP_TIMEOUT is {text!r}, which is no time")
    return value / 1000 if value >= _MILLISECONDS_FROM else value


def _headers(text: str) -> dict[str, str]:
    """`key=value,key=value` with URL-encoded values, as in W3C baggage."""
    found: dict[str, str] = {}
    for member in text.split(","):
        if not member.strip():
            continue
        key, equals, value = member.partition("=")
        name = unquote(key).strip().lower()
        if not equals or not name or not name.isascii() or any(letter in name for letter in " \t\r\n:"):
            raise UsageError("OTEL_EXPORTER_OTLP_HEADERS has a member that is not key=value")
        found[name] = unquote(value).strip()
    return found


def _file(variables: Mapping[str, str], name: str) -> str | None:
    path = _variable(variables, name)
    if path is not None and not os.access(path, os.R_OK):
        raise UsageError(f"OTEL_EXPORTER_OTLP_{name} names {path}, which cannot be read")
    return path


def _endpoint(option: str | None, protocol: Protocol, variables: Mapping[str, str]) -> str:
    """The URL to send to. Only the variable for traces is taken as it is; a base URL gets `/v1/traces` over HTTP."""
    own = variables.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip()
    common = variables.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    url = option or own or common or _DEFAULT_ENDPOINTS[protocol]
    if protocol == "grpc" and "://" not in url:
        insecure = (_variable(variables, "INSECURE") or "").lower() == "true"
        url = f"{'http' if insecure else 'https'}://{url}"
    path = _url_path(url)
    if path is None:
        raise UsageError(f"OTLP endpoint {url!r} is no http or https URL", "use http://localhost:4318 or the like")
    if protocol == "grpc" or (own and not option):
        return url
    return url.rstrip("/") + _TRACES_PATH if option is None or path in {"", "/"} else url


def _url_path(url: str) -> str | None:
    """The path of an http or https URL; None when it is none."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts.path if valid and url.isprintable() and " " not in url else None
