"""Real alerting for tests: Debian's Prometheus and Alertmanager, with a webhook that takes what they deliver.

    with Exposition(text) as metrics, alerting(folder, {"raxol-fleet": [metrics.address]}, rules) as world:
        alert = world.wait_for("RaxolJournalDamaged", session_id="shop-2")

Nothing has a fixed port, and everything is stopped at the end. Rules may be shortened (`shorten`), so that hours pass
in seconds.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.exporter_contract import environment
from tests.test_prometheus import program

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

HOST: Final = "127.0.0.1"
SECONDS_MAX: Final = 60
STARTS_MAX: Final = 3
POLL_SECONDS: Final = 0.1
SCRAPE: Final = "500ms"
SHORTEN_BY: Final = 300
# Of a window: some scrapes have to fit into it.
WINDOW_SECONDS_MIN: Final = 3
UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
DURATION: Final = r"(?P<count>[0-9]+)(?P<unit>[smhd])"
PROMETHEUS: Final = """
global: {{scrape_interval: {scrape}, scrape_timeout: {scrape}, evaluation_interval: {scrape}}}
rule_files: {rules}
alerting: {{alertmanagers: [{{static_configs: [{{targets: ["{alertmanager}"]}}]}}]}}
scrape_configs: {jobs}
"""
ALERTMANAGER: Final = """
route: {{receiver: webhook, group_by: ["..."], group_wait: 0s, group_interval: 1s, repeat_interval: 1h}}
receivers: [{{name: webhook, webhook_configs: [{{url: "{url}"}}]}}]
"""


def shorten(rules: str, by: int = SHORTEN_BY) -> str:
    """The text of a rule file in which time passes faster: durations, and nothing else, are divided.

    Replaced are those after `for:` and `keep_firing_for:`, those of windows (`[1h]`, `offset 1h`; a window stays long
    enough for some scrapes), and `interval:`, which becomes that of the scrapes. Thresholds (`> 600`), names of
    recorded series and texts stay as they are: the data has to reach them.
    """

    def seconds(match: re.Match[str], least: int) -> int:
        return max(int(match["count"]) * UNITS[match["unit"]] // by, least)

    text = re.sub(rf"(?m)(?<=for: ){DURATION}$", lambda match: f"{seconds(match, 0)}s", rules)
    text = re.sub(rf"\[{DURATION}\]", lambda match: f"[{seconds(match, WINDOW_SECONDS_MIN)}s]", text)
    text = re.sub(rf"\boffset {DURATION}", lambda match: f"offset {seconds(match, WINDOW_SECONDS_MIN)}s", text)
    return re.sub(rf"(?m)(?<=interval: ){DURATION}$", SCRAPE, text)


def free_address() -> str:
    """An address that nobody listens at just now."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        return f"{HOST}:{free.getsockname()[1]}"


class _Served:
    """A small HTTP server in a thread, for a while."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = ThreadingHTTPServer((HOST, 0), handler)
        self.address = f"{HOST}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_SECONDS,))

    def __enter__(self) -> Self:
        """Begin to answer."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        """Stop, and close what is open."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Answers in one piece, and keeps quiet."""

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        pass


class Exposition(_Served):
    """A target to scrape: whatever is asked for, the answer is `text`, which may change."""

    def __init__(self, text: str) -> None:
        served = self
        self.text = text

        class Handler(_Handler):
            def do_GET(self) -> None:
                self.answer(served.text.encode())

        super().__init__(Handler)


class Webhook(_Served):
    """Takes what Alertmanager delivers: alerts as it sends them, in the order that they came."""

    def __init__(self) -> None:
        served = self
        self._lock = threading.Lock()
        self._alerts: list[dict[str, Any]] = []

        class Handler(_Handler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                served.take(body["alerts"])
                self.answer(b"")

        super().__init__(Handler)

    def take(self, alerts: list[dict[str, Any]]) -> None:
        """Keep them."""
        with self._lock:
            self._alerts.extend(alerts)

    @property
    def alerts(self) -> list[dict[str, Any]]:
        """All that came up to now."""
        with self._lock:
            return list(self._alerts)


class World:
    """A Prometheus and an Alertmanager at work."""

    def __init__(self, prometheus: str, alertmanager: str, webhook: Webhook) -> None:
        self.prometheus = prometheus
        self.alertmanager = alertmanager
        self._webhook = webhook

    @property
    def delivered(self) -> list[dict[str, Any]]:
        """Every alert that has reached the webhook: `status`, `labels`, `annotations` and times."""
        return self._webhook.alerts

    def find(self, name: str, status: str = "firing", **labels: str) -> dict[str, Any] | None:
        """The first delivered alert of this name and status that has these labels."""
        wanted = {"alertname": name, **labels}.items()
        return next(
            (one for one in self.delivered if one["status"] == status and wanted <= one["labels"].items()), None
        )

    def wait_for(
        self, name: str, status: str = "firing", *, seconds: float = SECONDS_MAX, **labels: str
    ) -> dict[str, Any]:
        """As `find`, when it has come; fails with what did come."""
        deadline = time.monotonic() + seconds
        while (found := self.find(name, status, **labels)) is None:
            if time.monotonic() > deadline:
                came = sorted({(one["labels"]["alertname"], one["status"]) for one in self.delivered})
                pytest.fail(f"{name} ({status}, {labels}) was not delivered within {seconds} s; what came: {came}")
            time.sleep(POLL_SECONDS)
        return found

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What Prometheus answers to an instant query."""
        return list(self.ask("query", query=expression)["result"])

    def ask(self, path: str, **parameters: str | float) -> Any:
        """The data that Prometheus' API answers."""
        with urlopen(f"{self.prometheus}/api/v1/{path}?{urlencode(parameters)}", timeout=60) as answer:  # noqa: S310 - http
            said = json.load(answer)
        assert said["status"] == "success"
        return said["data"]


@contextmanager
def alerting(
    folder: Path,
    targets: Mapping[str, Sequence[str]],
    rules: Sequence[Path],
    labels: Mapping[str, str] | None = None,
    *,
    scrape: str = SCRAPE,
    names: Mapping[str, str] | None = None,
) -> Generator[World]:
    """Prometheus scraping `targets` (addresses by job, with these labels), its alerts delivered to a webhook.

    Skips where the programs are not installed. `folder` takes configuration, data and what they say. `scrape` is how
    often it scrapes and looks at rules; `names` are what to call addresses in the label `instance`.
    """
    binaries = {name: shutil.which(name) for name in ("prometheus", "prometheus-alertmanager")}
    for name, path in binaries.items():
        if path is None:
            pytest.skip(f"{name} is not here: Debian's package `{name}` has it")
    with ExitStack() as stack:
        webhook = stack.enter_context(Webhook())
        (folder / "alertmanager.yaml").write_text(
            ALERTMANAGER.format(url=f"http://{webhook.address}/"), encoding="utf-8"
        )
        alertmanager = _started(
            *(stack, folder, str(binaries["prometheus-alertmanager"])),
            *(f"--config.file={folder / 'alertmanager.yaml'}", f"--storage.path={folder / 'alertmanager'}"),
            "--cluster.listen-address=",  # alone: it looks for no others
        )
        static = [
            {
                "job_name": job,
                "static_configs": [
                    {"targets": [one], "labels": {"instance": (names or {}).get(one, one), **(labels or {})}}
                    for one in addresses
                ],
            }
            for job, addresses in targets.items()
        ]
        # JSON is YAML.
        config = PROMETHEUS.format(
            scrape=scrape,
            rules=json.dumps([str(path) for path in rules]),
            alertmanager=alertmanager,
            jobs=json.dumps(static),
        )
        (folder / "prometheus.yaml").write_text(config, encoding="utf-8")
        prometheus = _started(
            *(stack, folder, str(binaries["prometheus"])),
            *(f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'prometheus'}"),
            "--enable-feature=exemplar-storage",
        )
        yield World(f"http://{prometheus}", f"http://{alertmanager}", webhook)


def _started(stack: ExitStack, folder: Path, *command: str) -> str:
    """The address of a server that is ready; a port that somebody else took first is changed for another."""
    for _ in range(STARTS_MAX):
        address = free_address()
        with ExitStack() as attempt:
            process = attempt.enter_context(
                program(*command, f"--web.listen-address={address}", folder=folder, cwd=folder)
            )
            if _is_ready(process, f"http://{address}/-/ready"):
                stack.push(attempt.pop_all())
                return address
    said = (folder / "stderr.txt").read_text(encoding="utf-8")[-2000:]
    pytest.fail(f"{command[0]} did not start: {said}")


def _is_ready(process: subprocess.Popen[str], url: str) -> bool:
    """Whether it becomes ready, before it ends and in time."""
    deadline = time.monotonic() + SECONDS_MAX
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urlopen(url, timeout=10):  # noqa: S310 - http
                return True
        except (URLError, ConnectionError):
            time.sleep(POLL_SECONDS)
    return False


@contextmanager
def fleet_exporter(folder: Path, sessions: Path, acknowledged: Path | None = None, *options: str) -> Generator[str]:
    """The address of a real fleet exporter of these sessions, with these options, once it is ready."""
    address = free_address()
    command = [sys.executable, "-m", "raxol_otel", "serve", "--sessions-dir", str(sessions), "--listen", address]
    command += options
    if acknowledged is not None:
        command += ["--acknowledged", str(acknowledged)]
    with program(*command, folder=folder, cwd=folder, env=environment()) as process:
        assert _is_ready(process, f"http://{address}/readyz"), (folder / "stderr.txt").read_text(encoding="utf-8")
        yield address
