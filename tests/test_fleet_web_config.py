"""The file of `--web-config`: what it may say, what is refused, and what a server then asks of its clients."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bcrypt
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from raxol_otel.errors import UsageError
from raxol_otel.fleet import auth as auth_module
from raxol_otel.fleet import server as server_module
from raxol_otel.fleet.web_config import load_web_config
from tests.conftest import unprivileged
from tests.fleet_server import COST, VIEW, config_file, get, hashed, serving, tls_config
from tests.otlp_receiver import make_certificates

if TYPE_CHECKING:
    from tests.otlp_receiver import Certificates

MTLS = "  client_auth_type: {}\n  client_ca_file: ca.pem\n"
NEVER_HASHED = "hunter2-in-the-clear"


def client(certificates: Certificates, *, shows: bool = False) -> ssl.SSLContext:
    """A client that trusts the authority, and shows a certificate of its own."""
    context = ssl.create_default_context(cafile=certificates.ca)
    if shows:
        context.load_cert_chain(certificates.client, certificates.client_key)
    return context


def basic(name: str, password: str) -> dict[str, str]:
    """The header of basic authentication."""
    return {"Authorization": f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"}


def refused(folder: Path, text: str) -> UsageError:
    """How the text is refused."""
    with pytest.raises(UsageError) as caught:
        load_web_config(config_file(folder, text))
    return caught.value


def test_an_empty_file_asks_nothing(tmp_path: Path) -> None:
    """A file that says nothing is a server without TLS and without users, which is not guarded."""
    for text in ("", "# nothing\n", "tls_server_config:\nbasic_auth_users:\nhttp_server_config:\n"):
        config = load_web_config(config_file(tmp_path, text))
        assert (config.tls, dict(config.users), dict(config.headers), config.is_guarded) == (None, {}, {}, False)


def test_everything_that_it_may_say(tmp_path: Path) -> None:
    """All fields, with paths relative to the file and absolute ones."""
    folder = tmp_path / "etc"
    folder.mkdir()
    certificates = make_certificates(folder)
    text = (
        f"tls_server_config:\n  cert_file: server.pem\n  key_file: {certificates.server_key}\n  min_version: TLS13\n"
        f"{MTLS.format('RequireAndVerifyClientCert')}"
        "http_server_config:\n  headers:\n    Strict-Transport-Security: max-age=31536000\n"
        f"basic_auth_users:\n  anna: {hashed('a')}\n  'bob ö': {hashed('b').replace('$2b$', '$2y$')}\n"
    )
    config = load_web_config(config_file(folder, text))
    assert config.tls is not None
    assert (config.tls.cert_file, config.tls.key_file) == (folder / "server.pem", certificates.server_key)
    assert (config.tls.client_ca_file, config.tls.min_version) == (folder / "ca.pem", "TLS13")
    assert config.tls.client_auth == "RequireAndVerifyClientCert"
    assert list(config.users) == ["anna", "bob ö"]
    assert dict(config.headers) == {"Strict-Transport-Security": "max-age=31536000"}
    assert config.is_guarded


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [", "is no YAML: line 1"),
        ("\tx: 1", "is no YAML: line 1, column 1: "),
        ("a: 1\n---\nb: 2\n", "is no YAML"),
        ("\0", "is no YAML"),
        ("!!python/object/apply:os.system ['true']", "is no YAML"),
        ("just words", "the file is not fields with their values"),
        ("- a\n- b\n", "the file is not fields with their values"),
        ("tls_config: {}\n", "'tls_config' is no field that is known here"),
        ("1: 2\n", "'1' is no field that is known here"),
        ("basic_auth_users:\nbasic_auth_users:\n", "line 2: a field or a user is there twice"),
        ("tls_server_config: []\n", "tls_server_config is not fields"),
        ("tls_server_config: {cipher_suites: []}\n", "'tls_server_config.cipher_suites' is no field"),
        ("tls_server_config: {cert_file: server.pem}\n", "tls_server_config.key_file is missing"),
        ("tls_server_config: {key_file: server.key}\n", "tls_server_config.cert_file is missing"),
        ("tls_server_config: {cert_file: 1, key_file: server.key}\n", "tls_server_config.cert_file is no text"),
        ("http_server_config: {http2: true}\n", "'http_server_config.http2' is no field"),
        ("http_server_config: {headers: {Server: x}}\n", "'http_server_config.headers.Server' is no field"),
        ('http_server_config: {headers: {X-Frame-Options: "a\\r\\nb"}}\n', "headers.X-Frame-Options has letters"),
        ("basic_auth_users: []\n", "basic_auth_users is not names with their hashes"),
        ("basic_auth_users: {}\n", "basic_auth_users is not names with their hashes"),
        ("basic_auth_users: {yes: x}\n", "basic_auth_users: True is no user name"),
        ("basic_auth_users: {'a:b': x}\n", "basic_auth_users: 'a:b' is no user name"),
        (f"basic_auth_users: {{anna: {NEVER_HASHED}}}\n", "basic_auth_users.anna is no bcrypt hash"),
        ("basic_auth_users: {anna: 1}\n", "basic_auth_users.anna is no bcrypt hash"),
        ("basic_auth_users: {anna: $2b$04$tooshort}\n", "basic_auth_users.anna is no bcrypt hash"),
        (f"basic_auth_users: {{anna: $2x$04${'a' * 53}}}\n", "basic_auth_users.anna is no bcrypt hash"),
        (f"basic_auth_users: {{anna: $2b$31${'a' * 53}}}\n", "basic_auth_users.anna is no bcrypt hash"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    """Each mistake is one error that names the file and the field, and never a value that may be a password."""
    make_certificates(tmp_path)
    error = refused(tmp_path, text)
    assert told in str(error)
    assert str(tmp_path / "web.yml") in str(error)
    assert NEVER_HASHED not in f"{error} {error.hint}"


def test_a_user_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """YAML takes the last of two; here neither, since one of the two people would be surprised."""
    error = refused(tmp_path, f"basic_auth_users:\n  anna: {hashed('a')}\n  anna: {hashed('b')}\n")
    assert str(error).endswith("web.yml line 3: a field or a user is there twice")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("  min_version: TLS10\n", "min_version: 'TLS10' is not TLS12 or TLS13"),
        ("  client_auth_type: Sometimes\n", "client_auth_type: 'Sometimes' is not known"),
        ("  client_auth_type: RequestClientCert\n", "'RequestClientCert' would take a certificate that nobody"),
        ("  client_auth_type: RequireAndVerifyClientCert\n", "does not go with no client_ca_file"),
        ("  client_ca_file: ca.pem\n", "NoClientCert does not go with a client_ca_file"),
        (MTLS.format("VerifyClientCertIfGiven").replace("ca.pem", "none.pem"), "client_ca_file: there is no "),
        (MTLS.format("VerifyClientCertIfGiven").replace("ca.pem", "server.key"), "client_ca_file: "),
    ],
)
def test_what_is_wrong_with_tls_is_told(tmp_path: Path, more: str, told: str) -> None:
    """Fields of TLS that are not known, or contradict each other, are refused."""
    path, _ = tls_config(tmp_path, more)
    assert told in str(refused(tmp_path, path.read_text()))


def test_files_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    """A file that is missing, a folder, no PEM, or the key of another certificate: each is told by its field."""
    path, certificates = tls_config(tmp_path)
    text = path.read_text()
    (tmp_path / "words.pem").write_text("words\n")
    cases = {
        text.replace("server.pem", "none.pem"): f"cert_file: there is no {tmp_path / 'none.pem'}",
        text.replace("server.key", "none.key"): f"key_file: there is no {tmp_path / 'none.key'}",
        text.replace("server.pem", "."): f"cert_file: {tmp_path} is no file",
        text.replace("server.pem", "words.pem"): "cannot be used: ",
        text.replace("server.key", "client.key"): f"{certificates.client_key} is not the key of the certificate in ",
    }
    for changed, told in cases.items():
        error = refused(tmp_path, changed)
        assert told in str(error)
        assert "tls_server_config." in str(error)
    with pytest.raises(UsageError, match="there is no "):
        load_web_config(tmp_path / "none.yml")
    with pytest.raises(UsageError, match="is no file"):
        load_web_config(tmp_path)


def test_an_encrypted_key_is_told_and_nobody_is_asked(tmp_path: Path) -> None:
    """A key with a passphrase is refused at once, instead of asking on the terminal."""
    path, certificates = tls_config(tmp_path)
    key = load_pem_private_key(certificates.server_key.read_bytes(), None)
    certificates.server_key.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    )
    assert "is encrypted" in str(refused(tmp_path, path.read_text()))


def test_files_without_permission_are_told() -> None:
    """A key, or the config itself, that this user may not read is named with the reason."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        path, certificates = tls_config(folder)
        certificates.server_key.chmod(0)
        with unprivileged(folder), pytest.raises(UsageError, match=r"key_file: cannot read .*server.key: Permission"):
            load_web_config(path)
        path.chmod(0)
        with unprivileged(folder), pytest.raises(UsageError, match=r"web config: cannot read .*web.yml: Permission"):
            load_web_config(path)


def test_an_endless_file_is_not_read(tmp_path: Path) -> None:
    """A file beyond a mebibyte, and a pipe, are refused."""
    assert "longer than" in str(refused(tmp_path, "#" * (2**20 + 1)))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is no file"):
        load_web_config(tmp_path / "pipe")


def test_tls_is_spoken(tmp_path: Path) -> None:
    """With TLS a client that trusts the authority is answered; one that speaks none gets nothing, and harms nobody."""
    path, certificates = tls_config(tmp_path)
    with serving(web_config=path) as (server, _):
        answer = get(server, tls=client(certificates))
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain:
            plain.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert not plain.recv(65536).startswith(b"HTTP")
        with pytest.raises(ssl.SSLCertVerificationError):
            get(server, tls=ssl.create_default_context())
        after = get(server, tls=client(certificates))
        assert server.url == f"https://127.0.0.1:{server.port}/"
    assert (answer.status, answer.body, after.status) == (200, VIEW.text, 200)


def test_old_versions_of_tls_are_refused(tmp_path: Path) -> None:
    """`min_version: TLS13` refuses a client that knows TLS 1.2 only; by default it is answered."""
    path, certificates = tls_config(tmp_path)
    old = client(certificates)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with serving(web_config=path) as (server, _):
        assert get(server, tls=old).status == 200
    path.write_text(path.read_text() + "  min_version: TLS13\n")
    with serving(web_config=path) as (server, _):
        with pytest.raises(ssl.SSLError):
            get(server, tls=old)
        assert get(server, tls=client(certificates)).status == 200


def test_clients_show_certificates(tmp_path: Path) -> None:
    """Required, a client without a certificate gets no answer; if given, it is answered either way."""
    path, certificates = tls_config(tmp_path, MTLS.format("RequireAndVerifyClientCert"))
    with serving(web_config=path) as (server, _):
        assert get(server, tls=client(certificates, shows=True)).status == 200
        with pytest.raises((ssl.SSLError, ConnectionError)):
            get(server, tls=client(certificates))
    path.write_text(path.read_text().replace("RequireAndVerify", "Verify").replace("ClientCert", "ClientCertIfGiven"))
    with serving(web_config=path) as (server, _):
        assert get(server, tls=client(certificates, shows=True)).status == 200
        assert get(server, tls=client(certificates)).status == 200


def test_a_new_certificate_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate that is renewed on disk is served soon; one that does not match its key is not, and is told."""
    monkeypatch.setattr(server_module, "_RELOAD_SECONDS", 0.5)
    path, old = tls_config(tmp_path)
    trusts_old = client(old)
    with serving(web_config=path) as (server, _):
        other = tmp_path / "new"
        other.mkdir()
        new = make_certificates(other)
        shutil.copyfile(new.server, old.server)  # and not yet the key
        time.sleep(2.5)
        assert get(server, tls=trusts_old).status == 200
        shutil.copyfile(new.server_key, old.server_key)
        deadline = time.monotonic() + 10
        while True:
            try:
                assert get(server, tls=client(new)).status == 200
                break
            except ssl.SSLCertVerificationError:
                assert time.monotonic() < deadline
                time.sleep(0.2)


def test_every_path_needs_a_password(tmp_path: Path) -> None:
    """With users each path answers 401 and how to say who one is; with the right password it is as without."""
    path = config_file(tmp_path, f"basic_auth_users:\n  anna: {hashed('grün:1')}\n  bob: {hashed('b')}\n")
    with serving(web_config=path) as (server, _):
        closed = [get(server, one) for one in ("/", "/metrics", "/healthz", "/readyz", "/nowhere")]
        headers = [basic("anna", "grün:1"), basic("bob", "b")]
        opened = [get(server, one, headers=header).status for one in ("/metrics", "/nowhere") for header in headers]
        wrong = [
            basic("anna", "b"),
            basic("nobody", "b"),
            basic("", ""),
            basic("anna", "grün:1\0"),
            basic("anna", "x" * 3000),
            {"Authorization": "Basic"},
            {"Authorization": "Basic %%%"},
            {"Authorization": "Basic YW5uYQ=="},
            {"Authorization": "Bearer abc"},
            {"Authorization": basic("anna", "grün:1")["Authorization"].replace("Basic", "Digest")},
        ]
        refused_ones = [get(server, headers=header).status for header in wrong]
    assert [answer.status for answer in closed] == [401] * 5
    assert closed[0].headers["www-authenticate"] == 'Basic realm="raxol-otel", charset="UTF-8"'
    assert b"page" not in closed[0].body
    assert opened == [200, 200, 404, 404]
    assert refused_ones == [401] * len(wrong)


def test_long_passwords_count_up_to_what_bcrypt_reads(tmp_path: Path) -> None:
    """A password beyond 72 bytes is cut there, as in every other program that uses bcrypt."""
    stored = bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(COST)).decode()
    path = config_file(tmp_path, f"basic_auth_users:\n  anna: {stored}\n")
    with serving(web_config=path) as (server, _):
        assert get(server, headers=basic("anna", "x" * 80)).status == 200
        assert get(server, headers=basic("anna", "x" * 71)).status == 401


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The hashes that passwords are compared with from now on."""
    calls: list[bytes] = []
    check = bcrypt.checkpw

    def checkpw(password: bytes, stored: bytes) -> bool:
        calls.append(stored)
        return check(password, stored)

    monkeypatch.setattr(bcrypt, "checkpw", checkpw)
    return calls


def test_a_right_password_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapers with the same right password cost one check, also all at once; each wrong one costs one."""
    calls = counted(monkeypatch)
    path = config_file(tmp_path, f"basic_auth_users:\n  anna: {hashed('a')}\n")
    with serving(web_config=path) as (server, _), ThreadPoolExecutor(20) as threads:
        right = [threads.submit(get, server, headers=basic("anna", "a")) for _ in range(40)]
        assert {one.result().status for one in right} == {200}
        assert len(calls) == 1
        wrong = [get(server, headers=basic("anna", "b")).status for _ in range(3)]
    assert wrong == [401] * 3
    assert len(calls) == 4


def test_an_unknown_name_costs_what_a_wrong_password_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a name that there is not a hash as costly as the users' is compared with, and never matches."""
    calls = counted(monkeypatch)
    path = config_file(tmp_path, f"basic_auth_users:\n  anna: {hashed('a')}\n")
    with serving(web_config=path) as (server, _):
        assert get(server, headers=basic("nobody", "a")).status == 401
        assert get(server, headers={}).status == 401
    assert len(calls) == 2
    assert all(stored.startswith(b"$2b$%02d$" % COST) and len(stored) == 60 for stored in calls)


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more right passwords than are remembered the oldest is checked anew; no plain password is kept."""
    monkeypatch.setattr(auth_module, "REMEMBERED_MAX", 2)
    calls = counted(monkeypatch)
    users = "".join(f"  u{number}: {hashed(f'secret-{number}')}\n" for number in range(3))
    with serving(web_config=config_file(tmp_path, f"basic_auth_users:\n{users}")) as (server, _):
        for number in (0, 1, 2, 2, 1, 0):
            assert get(server, headers=basic(f"u{number}", f"secret-{number}")).status == 200
        inside: Any = server
        kept: Any = inside._app._auth
        assert len(kept._right) == 2
        assert "secret" not in repr(kept.__dict__)
    assert len(calls) == 4


def test_checking_passwords_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While slow hashes are computed a scraper that is known is answered at once; too many at a time are sent away."""
    monkeypatch.setattr(auth_module, "WAITING_MAX", 3)
    slow = bcrypt.hashpw(b"slow", bcrypt.gensalt(12)).decode()
    path = config_file(tmp_path, f"basic_auth_users:\n  anna: {hashed('a')}\n  slow: {slow}\n")
    statuses: list[int] = []
    with serving(web_config=path) as (server, _):
        assert get(server, headers=basic("anna", "a")).status == 200

        def guess(number: int) -> None:
            statuses.append(get(server, headers=basic("slow", f"guess-{number}")).status)

        threads = [threading.Thread(target=guess, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        times: list[float] = []
        while any(thread.is_alive() for thread in threads):
            began = time.monotonic()
            assert get(server, headers=basic("anna", "a")).status == 200
            times.append(time.monotonic() - began)
        for thread in threads:
            thread.join()
    assert set(statuses) == {401, 503}
    assert min(times) < 0.15


def test_headers_of_the_config_are_sent(tmp_path: Path) -> None:
    """Headers of the config are on every answer, instead of our own of the same name."""
    text = (
        "http_server_config:\n  headers:\n    Strict-Transport-Security: max-age=1\n    X-Frame-Options: sameorigin\n"
    )
    with serving(web_config=config_file(tmp_path, text)) as (server, _):
        headers = get(server, "/nowhere").headers
    assert (headers["strict-transport-security"], headers["x-frame-options"]) == ("max-age=1", "sameorigin")


def test_curl_gets_through(tmp_path: Path) -> None:
    """curl, with TLS, a password and compression, gets the metrics."""
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("there is no curl here")
    path, certificates = tls_config(tmp_path, f"basic_auth_users:\n  anna: {hashed('a')}\n")
    with serving(web_config=path) as (server, _):
        command = [curl, "-sS", "--fail", "--compressed", "--cacert", str(certificates.ca), "-u", "anna:a"]
        done = subprocess.run(
            [*command, f"https://localhost:{server.port}/metrics"], capture_output=True, timeout=30, check=False
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, VIEW.text, b"")
