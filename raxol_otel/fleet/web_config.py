"""The file of `--web-config`: TLS, basic authentication and headers, as Prometheus' own exporters read it.

Fields: `tls_server_config` (`cert_file`, `key_file`, `client_ca_file`, `client_auth_type`, `min_version`),
`http_server_config` (`headers`) and `basic_auth_users` (names and bcrypt hashes). Paths are relative to the file. What
is not known is refused: a misspelt field must not leave a server open.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from raxol_otel.errors import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["ClientAuth", "TlsConfig", "WebConfig", "load_web_config", "missing_library"]

ClientAuth = Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"]

_CONFIG_BYTES_MAX: Final = 2**20
_USERS_MAX: Final = 1000
# Each step doubles the work; 16 takes seconds.
_COST_MAX: Final = 16
_HASH: Final = re.compile(r"\$2[aby]\$([0-9]{2})\$[./A-Za-z0-9]{53}", re.ASCII)
_CLIENT_AUTH: Final[dict[str, ssl.VerifyMode]] = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
# Of Go, where a certificate that nobody verified can be asked for.
_CLIENT_AUTH_UNVERIFIED: Final = frozenset({"RequestClientCert", "RequireAnyClientCert", "RequireClientCert"})
_VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
# By their lower-case names; those that the exporter toolkit takes.
_HEADERS: Final = {
    name.lower(): name
    for name in (
        "Content-Security-Policy",
        "Strict-Transport-Security",
        "X-Content-Type-Options",
        "X-Frame-Options",
        "X-XSS-Protection",
    )
}


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Where the certificates are, and what is asked of clients. `source` is the file that says so, for messages."""

    source: Path
    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    client_auth: ClientAuth = "NoClientCert"
    min_version: str = "TLS12"

    def context(self) -> ssl.SSLContext:
        """A context of the files as they are now. Raises `UsageError` where one cannot be used, or does not match."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _VERSIONS[self.min_version]
        context.set_alpn_protocols(["http/1.1"])
        self.load_pair(context)
        if self.client_ca_file is not None:
            _readable(self.client_ca_file, self._place("client_ca_file"))
            try:
                context.load_verify_locations(self.client_ca_file)
            except (ssl.SSLError, OSError) as error:
                raise UsageError(
                    f"{self._place('client_ca_file')}: {self.client_ca_file} holds no certificates: {_why(error)}",
                    "it must be the certificates of the authorities of your clients, as PEM",
                ) from None
        context.verify_mode = _CLIENT_AUTH[self.client_auth]
        return context

    def load_pair(self, context: ssl.SSLContext) -> None:
        """Put certificate and key into the context, also one that is in use. Raises `UsageError` as `context` does."""
        for path, name in ((self.cert_file, "cert_file"), (self.key_file, "key_file")):
            _readable(path, self._place(name))
        asked: list[bool] = []

        def passphrase() -> str:
            asked.append(True)  # left to itself OpenSSL would ask on the terminal
            return ""

        try:
            context.load_cert_chain(self.cert_file, self.key_file, passphrase)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise self._unusable(error, is_encrypted=bool(asked)) from None

    def _unusable(self, error: Exception, *, is_encrypted: bool) -> UsageError:
        place = self._place("key_file" if is_encrypted else "cert_file")
        if is_encrypted:
            return UsageError(
                f"{place}: {self.key_file} is encrypted, and there is nobody to ask for its passphrase",
                "openssl pkey -in KEY -out PLAIN_KEY, readable by this user only",
            )
        if "MISMATCH" in (getattr(error, "reason", None) or ""):
            return UsageError(
                f"{place}: {self.key_file} is not the key of the certificate in {self.cert_file}",
                "name the key that the certificate was made for; of a chain the server's certificate comes first",
            )
        return UsageError(
            f"{place}: {self.cert_file} and {self.key_file} cannot be used: {_why(error)}",
            "both must be PEM: the certificate with its chain, and its private key",
        )

    def _place(self, name: str) -> str:
        return f"{self.source}: tls_server_config.{name}"


@dataclass(frozen=True, slots=True)
class WebConfig:
    """What the file says. `users` are bcrypt hashes by name; empty where nobody has to say who they are."""

    source: Path
    tls: TlsConfig | None = None
    users: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_guarded(self) -> bool:
        """Whether a client has to prove who it is."""
        return bool(self.users) or (self.tls is not None and self.tls.client_auth == "RequireAndVerifyClientCert")


def missing_library(name: str) -> UsageError:
    """What to say when a library of the extra `serve` is not there."""
    return UsageError(f"this needs the library {name}, which is not installed", 'pip install "raxol-otel[serve]"')


def load_web_config(path: str | os.PathLike[str]) -> WebConfig:
    """Read the file and try what it names. Raises `UsageError`, which names the field and the way out."""
    source = Path(path)
    try:
        import bcrypt  # noqa: F401, PLC0415 # pyright: ignore[reportUnusedImport] - a hash needs it to be of use
        import yaml  # noqa: PLC0415 - of the extra `serve`
    except ImportError as error:
        raise missing_library(error.name or "yaml") from None

    _readable(source, "the web config")
    with source.open("rb") as file:
        data = file.read(_CONFIG_BYTES_MAX + 1)
    if len(data) > _CONFIG_BYTES_MAX:
        raise UsageError(f"the web config {source} is longer than {_CONFIG_BYTES_MAX} bytes")
    try:
        repeated = _repeated(yaml.compose(data, Loader=yaml.SafeLoader))
        tree = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        what = getattr(error, "problem", None) or "it cannot be parsed"
        raise UsageError(f"the web config {source} is no YAML:{where}: {what}") from None
    if repeated is not None:
        raise UsageError(f"the web config {source} line {repeated}: a field or a user is there twice", "remove one")
    return _config(source, tree)


def _repeated(root: Any) -> int | None:
    """The line of a key that stands twice in its mapping, which a loader would take the last of; None without."""
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen or not isinstance(getattr(node, "value", None), list):
            continue
        seen.add(id(node))
        keys = set[Any]()
        for child in node.value:
            # Of a mapping the children are pairs, of a list nodes.
            pair: tuple[Any, ...] = child if isinstance(child, tuple) else (child,)  # pyright: ignore[reportUnknownVariableType] - Any
            if len(pair) > 1 and isinstance(pair[0].value, str):
                if pair[0].value in keys:
                    return int(pair[0].start_mark.line) + 1
                keys.add(pair[0].value)
            waiting.extend(pair)
    return None


def _config(source: Path, tree: Any) -> WebConfig:
    root = _fields(source, "", tree, ("tls_server_config", "http_server_config", "basic_auth_users"))
    tls = root.get("tls_server_config")
    config = WebConfig(
        source,
        None if tls is None else _tls(source, tls),
        _users(source, root.get("basic_auth_users")),
        _headers(source, root.get("http_server_config")),
    )
    if config.tls is not None:
        config.tls.context()
    return config


def _tls(source: Path, tree: Any) -> TlsConfig:
    names = ("cert_file", "key_file", "client_ca_file", "client_auth_type", "min_version")
    texts = {
        name: _text(source, f"tls_server_config.{name}", value)
        for name, value in _fields(source, "tls_server_config", tree, names).items()
        if value is not None and value != ""
    }
    for name in ("cert_file", "key_file"):
        if name not in texts:
            raise UsageError(
                f"{source}: tls_server_config.{name} is missing", "TLS needs both cert_file and key_file, as PEM"
            )
    auth = texts.get("client_auth_type", "NoClientCert")
    place = f"{source}: tls_server_config.client_auth_type"
    if auth not in _CLIENT_AUTH:
        is_unverified = auth in _CLIENT_AUTH_UNVERIFIED
        what = "would take a certificate that nobody has verified" if is_unverified else "is not known"
        raise UsageError(f"{place}: {auth!r} {what}", f"use one of {', '.join(_CLIENT_AUTH)}")
    if (auth == "NoClientCert") != ("client_ca_file" not in texts):
        raise UsageError(
            f"{place}: {auth} does not go with {'a' if auth == 'NoClientCert' else 'no'} client_ca_file",
            "to ask clients for certificates set client_auth_type: RequireAndVerifyClientCert and client_ca_file",
        )
    version = texts.get("min_version", "TLS12")
    if version not in _VERSIONS:
        raise UsageError(f"{source}: tls_server_config.min_version: {version!r} is not TLS12 or TLS13")
    folder = source.parent
    authority = texts.get("client_ca_file")
    return TlsConfig(
        source,
        folder / texts["cert_file"],
        folder / texts["key_file"],
        None if authority is None else folder / authority,
        auth,  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - it is a key of _CLIENT_AUTH
        version,
    )


def _users(source: Path, tree: Any) -> dict[str, bytes]:
    if tree is None:
        return {}
    if not isinstance(tree, dict) or not tree:
        raise UsageError(
            f"{source}: basic_auth_users is not names with their hashes, so nobody could get in",
            "write NAME: HASH lines below it, or leave it out",
        )
    users: dict[str, bytes] = {}
    for name, value in _items(tree):
        if not isinstance(name, str) or not name or ":" in name or not name.isprintable():
            raise UsageError(
                f"{source}: basic_auth_users: {name!r} is no user name",
                "a name is text without colons; in YAML a number, yes and no need quotes",
            )
        match = _HASH.fullmatch(value) if isinstance(value, str) else None
        # The value may be a password that somebody forgot to hash, so it is not told.
        if match is None or not 4 <= int(match[1]) <= _COST_MAX:  # noqa: PLR2004 - bcrypt's own least
            raise UsageError(
                f"{source}: basic_auth_users.{name} is no bcrypt hash ($2a$, $2b$ or $2y$, cost 04 to {_COST_MAX})",
                "htpasswd -nBC 10 NAME, and what it prints after NAME:",
            )
        users[name] = value.encode()
    if len(users) > _USERS_MAX:
        raise UsageError(f"{source}: basic_auth_users has more than {_USERS_MAX} users")
    return users


def _headers(source: Path, tree: Any) -> dict[str, str]:
    if tree is None:
        return {}
    given = _fields(source, "http_server_config", tree, ("headers",)).get("headers")
    headers: dict[str, str] = {}
    for name, value in _fields(source, "http_server_config.headers", given, tuple(_HEADERS.values())).items():
        text = _text(source, f"http_server_config.headers.{name}", value)
        if not text.isascii() or not text.isprintable():
            raise UsageError(f"{source}: http_server_config.headers.{name} has letters that no header can carry")
        headers[name] = text
    return headers


def _fields(source: Path, place: str, tree: Any, known: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a mapping (none where nothing is set), all of them known."""
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise UsageError(f"{source}: {place or 'the file'} is not fields with their values")
    fields: dict[str, Any] = {}
    for name, value in _items(tree):
        if name not in known:
            path = f"{place}.{name}" if place else f"{name}"
            raise UsageError(f"{source}: {path!r} is no field that is known here", f"known are {', '.join(known)}")
        fields[name] = value
    return fields


def _items(tree: Any) -> list[tuple[Any, Any]]:
    """Keys and values of any type."""
    return list(tree.items())


def _text(source: Path, place: str, value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise UsageError(f"{source}: {place} is no text", "put it into quotes")
    return value


def _readable(path: Path, what: str) -> None:
    """Raises `UsageError` where the file cannot be read."""
    try:
        if not path.is_file():  # a pipe would be waited for
            raise UsageError(f"{what}: {path} is no file" if path.exists() else f"{what}: there is no {path}")
        with path.open("rb"):
            pass
    except OSError as error:
        raise UsageError(f"{what}: cannot read {path}: {error.strerror or error}") from None


def _why(error: Exception) -> str:
    """An error of OpenSSL in its own words, without the place in its source."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, str) and reason:
        return reason.replace("_", " ").lower()
    return getattr(error, "strerror", None) or "not PEM"
