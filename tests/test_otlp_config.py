"""Where and how OTLP is sent: what the variables and options say, which of them wins, and what is refused."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.errors import ExportError, UsageError
from raxol_otel.exporters.otlp_config import OtlpConfig
from tests.conftest import NOBODY
from tests.exporter_contract import raxol, turn_records, write_session

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMON: Final = "OTEL_EXPORTER_OTLP_"
TRACES: Final = "OTEL_EXPORTER_OTLP_TRACES_"
HIDDEN: Final = "s3cr3t"
BOTH: Final = pytest.mark.parametrize("prefix", [COMMON, TRACES])


def resolved(variables: Mapping[str, str] | None = None, **options: Any) -> OtlpConfig:
    """The configuration of an environment with only these variables."""
    return OtlpConfig.resolve(environment=variables or {}, **options)


def refusal(variables: Mapping[str, str] | None = None, **options: Any) -> str:
    """What the error says, its hint too; it is no failure to export."""
    with pytest.raises(UsageError) as caught:
        resolved(variables, **options)
    assert not isinstance(caught.value, ExportError)
    assert "\n" not in str(caught.value)
    return f"{caught.value} {caught.value.hint}"


# -- which one wins


def test_without_anything_it_is_the_local_collector() -> None:
    """HTTP to localhost, ten seconds a request, nothing compressed, no headers, no files."""
    assert resolved() == OtlpConfig(
        endpoint="http://localhost:4318/v1/traces",
        protocol="http/protobuf",
        headers={},
        timeout=10.0,
        compression="none",
        certificate=None,
        client_key=None,
        client_certificate=None,
    )


def test_without_anything_grpc_goes_to_its_own_port() -> None:
    """The default endpoint is that of the protocol."""
    config = resolved(protocol="grpc")
    assert (config.endpoint, config.host, config.is_secure) == ("http://localhost:4317", "localhost:4317", False)


@pytest.mark.parametrize(
    ("setting", "common", "traces", "option", "found"),
    [
        ("PROTOCOL", "http/protobuf", "grpc", "http/protobuf", ("http/protobuf", "grpc", "http/protobuf")),
        ("TIMEOUT", "1", "2", 3.0, (1.0, 2.0, 3.0)),
        ("COMPRESSION", "gzip", "deflate", "none", ("gzip", "deflate", "none")),
        (
            "ENDPOINT",
            "http://a:1",
            "http://b:2/t",
            "http://c:3",
            ("http://a:1/v1/traces", "http://b:2/t", "http://c:3/v1/traces"),
        ),
    ],
)
def test_an_option_wins_over_traces_and_traces_over_all_signals(
    setting: str, common: str, traces: str, option: Any, found: tuple[Any, Any, Any]
) -> None:
    """The nearer word counts, whatever the farther one says."""
    variables = {COMMON + setting: common}
    assert getattr(resolved(variables), setting.lower()) == found[0]
    variables[TRACES + setting] = traces
    assert getattr(resolved(variables), setting.lower()) == found[1]
    assert getattr(resolved(variables, **{setting.lower(): option}), setting.lower()) == found[2]


def test_headers_of_traces_stand_in_place_of_those_of_all_signals() -> None:
    """The variable for traces replaces the other one whole; options add to it and win, name by name."""
    variables = {f"{COMMON}HEADERS": "a=1,b=1"}
    assert resolved(variables).headers == {"a": "1", "b": "1"}
    variables[f"{TRACES}HEADERS"] = "b=2,c=2"
    assert resolved(variables).headers == {"b": "2", "c": "2"}
    assert resolved(variables, headers={"c": "3", "d": "3"}).headers == {"b": "2", "c": "3", "d": "3"}


@pytest.mark.parametrize("setting", ["CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"])
def test_files_of_traces_win_over_those_of_all_signals(tmp_path: Path, setting: str) -> None:
    """The paths are kept as they were given."""
    for name in ("common.pem", "traces.pem", "key.pem"):
        (tmp_path / name).write_text("pem")
    # A key goes with a certificate; the file asked about is the only one that changes.
    variables = {
        f"{COMMON}CLIENT_KEY": str(tmp_path / "key.pem"),
        f"{COMMON}CLIENT_CERTIFICATE": str(tmp_path / "key.pem"),
    }
    variables[COMMON + setting] = str(tmp_path / "common.pem")
    assert getattr(resolved(variables), setting.lower()) == str(tmp_path / "common.pem")
    variables[TRACES + setting] = str(tmp_path / "traces.pem")
    assert getattr(resolved(variables), setting.lower()) == str(tmp_path / "traces.pem")


@pytest.mark.parametrize(
    "setting",
    ["PROTOCOL", "TIMEOUT", "COMPRESSION", "ENDPOINT", "HEADERS", "CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"],
)
@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_variable_says_nothing(setting: str, empty: str) -> None:
    """It is as if it were not set, and does not hide the variable for all signals."""
    assert resolved({TRACES + setting: empty, COMMON + setting: empty}) == resolved()
    assert resolved({f"{TRACES}TIMEOUT": empty, f"{COMMON}TIMEOUT": "3"}).timeout == 3.0


def test_the_process_environment_is_what_counts_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless told otherwise the variables are the process' own."""
    monkeypatch.setenv(f"{TRACES}ENDPOINT", "http://127.0.0.1:5/own")
    assert OtlpConfig.resolve().endpoint == "http://127.0.0.1:5/own"


# -- endpoints over HTTP


@pytest.mark.parametrize(
    ("base", "endpoint"),
    [
        ("http://host:4318", "http://host:4318/v1/traces"),
        ("http://host:4318/", "http://host:4318/v1/traces"),
        ("https://host", "https://host/v1/traces"),
        ("http://host/otlp", "http://host/otlp/v1/traces"),
        ("http://host/otlp/", "http://host/otlp/v1/traces"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
        ("  http://host:4318\n", "http://host:4318/v1/traces"),
        ("http://host/otlp?tenant=7", "http://host/otlp/v1/traces?tenant=7"),
    ],
)
def test_a_base_url_gets_the_path_of_traces(base: str, endpoint: str) -> None:
    """What the variable for all signals names is a base, with or without a slash at its end."""
    assert resolved({f"{COMMON}ENDPOINT": base}).endpoint == endpoint


@pytest.mark.parametrize("url", ["http://host:4318", "http://host:4318/", "https://host/here/", "http://[::1]/x?y=1"])
def test_the_endpoint_of_traces_is_taken_as_it_is(url: str) -> None:
    """Nothing is added to it and nothing taken off."""
    assert resolved({f"{TRACES}ENDPOINT": url, f"{COMMON}ENDPOINT": "http://other"}).endpoint == url


@pytest.mark.parametrize(
    ("option", "endpoint"),
    [
        ("http://host:4318", "http://host:4318/v1/traces"),
        ("http://host:4318/", "http://host:4318/v1/traces"),
        ("http://host:4318?tenant=7", "http://host:4318/v1/traces?tenant=7"),
        ("http://host:4318/v1/traces", "http://host:4318/v1/traces"),
        ("http://host/api/otlp/v1/traces", "http://host/api/otlp/v1/traces"),
        ("https://host/insert/", "https://host/insert/"),
    ],
)
@pytest.mark.parametrize("variable", [COMMON, TRACES])
def test_an_endpoint_given_as_option_may_be_base_or_whole(variable: str, option: str, endpoint: str) -> None:
    """Without a path it is a base; with one it is the whole URL; no variable changes that."""
    assert resolved({f"{variable}ENDPOINT": "http://other/path"}, endpoint=option).endpoint == endpoint


@pytest.mark.parametrize(
    ("url", "host", "secure"),
    [
        ("http://host", "host:80", False),
        ("https://host", "host:443", True),
        ("https://host:4318/x", "host:4318", True),
        ("http://[::1]:4318", "[::1]:4318", False),
        ("https://[2001:db8::7]", "[2001:db8::7]:443", True),
        ("HTTPS://Host:1", "host:1", True),
    ],
)
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_host_port_and_scheme_are_told_apart(url: str, host: str, protocol: str, *, secure: bool) -> None:
    """Ports of the schemes, IPv6 in brackets, and https in any spelling is encrypted."""
    config = resolved(endpoint=url, protocol=protocol)
    assert (config.host, config.is_secure) == (host, secure)


# -- endpoints over gRPC


@pytest.mark.parametrize(
    ("target", "insecure", "host", "secure"),
    [
        ("http://host:4317", "", "host:4317", False),
        ("http://host:4317/", "", "host:4317", False),
        ("https://host:4317", "true", "host:4317", True),
        ("http://host:4317", "false", "host:4317", False),
        ("host:4317", "", "host:4317", True),
        ("host:4317", "false", "host:4317", True),
        ("host:4317", "true", "host:4317", False),
        ("host:4317", "TRUE", "host:4317", False),
        ("host:4317", "yes", "host:4317", True),
        ("[::1]:4317", "true", "[::1]:4317", False),
        ("host", "true", "host:80", False),
        ("host", "", "host:443", True),
    ],
)
@BOTH
def test_a_grpc_target_is_encrypted_unless_it_says_otherwise(
    prefix: str, target: str, insecure: str, host: str, *, secure: bool
) -> None:
    """A scheme decides; without one only the word `true` for INSECURE, in any case, leaves out the encryption."""
    variables = {f"{prefix}PROTOCOL": "grpc", f"{prefix}ENDPOINT": target, f"{prefix}INSECURE": insecure}
    config = resolved(variables)
    assert (config.host, config.is_secure) == (host, secure)


def test_insecure_of_traces_wins() -> None:
    """As with every other setting."""
    variables = {f"{COMMON}INSECURE": "true", f"{TRACES}INSECURE": "false", f"{COMMON}ENDPOINT": "host:4317"}
    assert resolved(variables, protocol="grpc").is_secure


# -- headers, timeout, compression


@pytest.mark.parametrize(
    ("text", "headers"),
    [
        ("a=1", {"a": "1"}),
        ("a=1,b=2", {"a": "1", "b": "2"}),
        (" a = 1 , b= 2 ", {"a": "1", "b": "2"}),
        (",a=1,,", {"a": "1"}),
        ("Authorization=Basic%20dTpw", {"authorization": "Basic dTpw"}),
        ("authorization=Basic dTpwdw==", {"authorization": "Basic dTpwdw=="}),
        ("api%2Dkey=x%2Cy%3Dz", {"api-key": "x,y=z"}),
        ("a=1,A=2", {"a": "2"}),
        ("a=", {"a": ""}),
        ("a=100%", {"a": "100%"}),
        ("a=1+1", {"a": "1+1"}),
    ],
)
@BOTH
def test_headers_are_url_encoded_pairs(prefix: str, text: str, headers: dict[str, str]) -> None:
    """Commas part them, names are in lower case, a plus is a plus, spaces around do not count."""
    assert resolved({f"{prefix}HEADERS": text}).headers == headers


@pytest.mark.parametrize(
    "member",
    [
        HIDDEN,
        f"={HIDDEN}",
        f"two words={HIDDEN}",
        f"a:b={HIDDEN}",
        f"%0d%0ax={HIDDEN}",
        f"%C3%A9={HIDDEN}",
        f"a=%0d%0a{HIDDEN}",
        f"a=%00{HIDDEN}",
        f"a={HIDDEN}%0Ax: y",
        f"a=\U0001f511{HIDDEN}",
    ],
)
@BOTH
def test_a_bad_header_is_told_without_its_value(prefix: str, member: str) -> None:
    """What cannot be a header names the variable, and never what may be a secret."""
    said = refusal({f"{prefix}HEADERS": f"good={HIDDEN},{member}"})
    assert f"{prefix}HEADERS" in said
    assert HIDDEN not in said


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1", 1.0), ("0.25", 0.25), ("30", 30.0), ("999", 999.0), ("1000", 1.0), ("10000", 10.0), ("2500.0", 2.5)],
)
@BOTH
def test_a_timeout_is_in_seconds_or_in_milliseconds(prefix: str, text: str, seconds: float) -> None:
    """The SDK for Python counts seconds, the specification milliseconds: from 1000 on it must be those."""
    assert resolved({f"{prefix}TIMEOUT": text}).timeout == seconds


@pytest.mark.parametrize("compression", ["none", "gzip", "deflate"])
@BOTH
def test_a_known_compression_is_taken(prefix: str, compression: str) -> None:
    """The SDK knows these."""
    assert resolved({f"{prefix}COMPRESSION": compression}).compression == compression


# -- what is refused

BAD_ENDPOINTS: Final = [
    *(
        "localhost:4318",
        "ftp://host",
        "http://",
        "http://host:port",
        "http://host:99999",
        "http://host:0",
        "/v1/traces",
    ),
    *("http://[::1", "http://ho st", "http://host/\x07", "file:///etc/traces", "http://a..b", "http://:4318"),
]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *[("ENDPOINT", endpoint) for endpoint in BAD_ENDPOINTS],
        *[("PROTOCOL", text) for text in ("http/json", "http", "GRPC", "tcp")],
        *[("COMPRESSION", text) for text in ("zstd", "GZIP", "yes")],
        *[("TIMEOUT", text) for text in ("0", "-1", "soon", "nan", "inf", "1e400", "10s", "1,5")],
    ],
)
@BOTH
def test_a_bad_value_is_one_error_that_names_its_variable(prefix: str, setting: str, value: str) -> None:
    """The variable that is to be changed is the one that is named: that for traces where it is that one."""
    other = TRACES if prefix == COMMON else COMMON
    said = refusal({prefix + setting: value, **({other + setting: value} if prefix == TRACES else {})})
    assert prefix + setting in said


@pytest.mark.parametrize("setting", ["CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"])
@pytest.mark.parametrize("what", ["missing", "a folder"])
@BOTH
def test_a_file_that_cannot_be_read_names_variable_and_path(
    tmp_path: Path, prefix: str, setting: str, what: str
) -> None:
    """Before anything is sent: what is not there, or is no file."""
    path, good = tmp_path / "file.pem", tmp_path / "good.pem"
    good.write_text("pem")
    if what == "a folder":
        path.mkdir()
    pair = {f"{COMMON}CLIENT_KEY": str(good), f"{COMMON}CLIENT_CERTIFICATE": str(good)}
    said = refusal(pair | {prefix + setting: str(path)})
    assert prefix + setting in said
    assert str(path) in said


@pytest.mark.parametrize(("given", "missing"), [("KEY", "CERTIFICATE"), ("CERTIFICATE", "KEY")])
def test_a_key_and_its_certificate_go_together(tmp_path: Path, given: str, missing: str) -> None:
    """The one that is missing is named; the library of gRPC would end the process."""
    (tmp_path / "given.pem").write_text("pem")
    assert f"CLIENT_{missing}" in refusal({f"{COMMON}CLIENT_{given}": str(tmp_path / "given.pem")}, protocol="grpc")


@pytest.mark.parametrize("endpoint", BAD_ENDPOINTS)
def test_a_bad_endpoint_as_option_is_shown(endpoint: str) -> None:
    """An option shows its own value; no variable is blamed."""
    said = refusal({f"{COMMON}ENDPOINT": "http://fine"}, endpoint=endpoint)
    assert repr(endpoint) in said
    assert COMMON not in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--protocol", "http/json"], "'http/json'"),
        (["--compression", "zstd"], "'zstd'"),
        (["--endpoint", "localhost:4318"], "'localhost:4318'"),
    ],
)
def test_the_command_tells_a_bad_option_in_one_line(tmp_path: Path, options: list[str], said: str) -> None:
    """Exit code 2, one Error line with the value, one Try line, nothing sent."""
    session = write_session(tmp_path / "session", turn_records())
    done = raxol("replay", session, "--to", "otlp", *options)
    assert (done.returncode, done.stdout) == (2, "")
    error, hint = done.stderr.splitlines()
    assert error.startswith("Error: ")
    assert said in error
    assert hint.startswith("Try: ")


@pytest.mark.parametrize("options", [["--timeout", "0"], ["--header", f"a {HIDDEN}"], ["--header", f"a=\n{HIDDEN}"]])
def test_the_command_refuses_what_can_never_work(tmp_path: Path, options: list[str]) -> None:
    """No time at all is no timeout, as in the variable; a header that is none is told without its value."""
    session = write_session(tmp_path / "session", turn_records())
    done = raxol("replay", session, "--to", "otlp", "--endpoint", "http://127.0.0.1:1", "--retry-for", "0.1", *options)
    assert done.returncode == 2
    assert HIDDEN not in done.stderr.splitlines()[-1]


def test_the_command_names_a_file_that_it_may_not_read() -> None:
    """Exit code 2 and one line with variable and path."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        session, path = write_session(Path(folder, "session"), turn_records()), Path(folder, "ca.pem")
        path.write_text("pem")
        path.chmod(0)
        # Loaded first: the Python that runs this may be out of another user's reach.
        load = "import os, logging, raxol_otel.cli, raxol_otel.exporters.otlp_replay"
        become = f"{load}\nos.getuid() or os.setuid({NOBODY})"
        variables = {f"{COMMON}CERTIFICATE": str(path)}
        done = raxol("replay", session, "--to", "otlp", before=become, variables=variables)
    assert done.returncode == 2
    assert done.stderr == f"Error: OTEL_EXPORTER_OTLP_CERTIFICATE names {path}, which cannot be read\n"
