"""What docs/operating.md shows to be copied: each file of it is what its program takes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from raxol_otel.cli import build_parser
from raxol_otel.fleet.acknowledged import Acknowledged
from raxol_otel.fleet.web_config import load_web_config
from tests.conftest import ROOT
from tests.otlp_receiver import make_certificates

if TYPE_CHECKING:
    from pathlib import Path

PAGE: Final = (ROOT / "docs" / "operating.md").read_text("utf-8")
# What a service could reach, from 0 (nothing) to 100 (everything).
EXPOSURE_MAX: Final = 20


def blocks(language: str, name: str = "") -> list[str]:
    """The fenced blocks of a language whose first line names this file."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [block for block in found if not name or block.startswith(f"# {name}\n")]


def said(command: list[str], folder: Path) -> str:
    """What a checking program says; it must not fail."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_block_of_yaml_is_yaml() -> None:
    """All parse, and each is of a kind that is looked at more closely below."""
    names = [block.splitlines()[0] for block in blocks("yaml")]
    assert names == ["# prometheus.yml"] * 3 + ["# web.yml", "# sidecar.yaml", "# daemonset.yaml"]
    assert all(isinstance(yaml.safe_load(block), dict) for block in blocks("yaml"))


@pytest.mark.parametrize("config", blocks("yaml", "prometheus.yml"), ids=["plain", "tls", "kubernetes"])
def test_prometheus_takes_the_scrape_configs(tmp_path: Path, config: str) -> None:
    """No word against them from promtool, with the files that are named being there; the job is that of the rules."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool here")
    certificates = make_certificates(tmp_path)
    (tmp_path / "client.key").write_bytes(certificates.client_key.read_bytes())
    (tmp_path / "password").write_text("secret")
    path = tmp_path / "prometheus.yml"
    # Debian's Prometheus is built without Kubernetes; the rest of that config is looked at all the same.
    discovery = re.sub(r"kubernetes_sd_configs:\n.*\n", "static_configs:\n      - targets: [pod:9464]\n", config)
    path.write_text(discovery.replace("/etc/prometheus/raxol", str(tmp_path)))
    assert "SUCCESS" in said([promtool, "check", "config", str(path)], tmp_path)
    assert [job["job_name"] for job in yaml.safe_load(config)["scrape_configs"]] == ["raxol-fleet"]


def test_prometheus_takes_the_web_config(tmp_path: Path) -> None:
    """The web config is taken by this exporter and by Prometheus' own, as the page says."""
    make_certificates(tmp_path)
    path = tmp_path / "web.yml"
    path.write_text(blocks("yaml", "web.yml")[0])
    config = load_web_config(path)
    assert config.tls is not None
    assert config.tls.client_auth == "RequireAndVerifyClientCert"
    assert list(config.users) == ["prometheus"]
    promtool = shutil.which("promtool")
    if promtool is not None:
        assert "SUCCESS" in said([promtool, "check", "web-config", str(path)], tmp_path)


def test_the_acknowledgements_are_read(tmp_path: Path) -> None:
    """The example names the two sessions that it says it names."""
    path = tmp_path / "acknowledged"
    path.write_text(blocks("text")[0])
    assert Acknowledged(path).names() == {"checkout-bug", "team-a/night-run"}


def unit(folder: Path) -> Path:
    """The unit, with a program and a group that there are."""
    path = folder / "raxol-otel.service"
    text = blocks("ini", "/etc/systemd/system/raxol-otel.service")[0]
    path.write_text(text.replace("/opt/raxol-otel/bin/raxol-otel", sys.executable))
    return path


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """systemd-analyze finds nothing wrong, and little that the service could reach."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze here")
    path = unit(tmp_path)
    told = said([analyze, "verify", "--man=no", str(path)], tmp_path)
    assert [line for line in told.splitlines() if path.name in line] == []
    said([analyze, "security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", str(path)], tmp_path)


def parsed(arguments: list[str]) -> Any:
    """The options, as the command reads them."""
    return build_parser().parse_args(arguments)


def test_every_command_line_is_one(tmp_path: Path) -> None:
    """The options of the unit and of both manifests are options of the command, over paths that agree."""
    line = re.search(r"^ExecStart=\S+ (.*)$", unit(tmp_path).read_text(), re.MULTILINE)
    assert line is not None
    options = parsed(line[1].split())
    assert (str(options.sessions_dir), options.listen) == ("/srv/agents/sessions", "127.0.0.1:9464")
    for name in ("sidecar.yaml", "daemonset.yaml"):
        manifest = yaml.safe_load(blocks("yaml", name)[0])
        spec = manifest["spec"].get("template", manifest)["spec"]
        container = spec["containers"][-1]
        options = parsed(["serve", *container["args"]])
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        assert options.listen == ":9464"
        assert mounts[str(options.sessions_dir)]["readOnly"] is True
        assert not mounts[str(options.state.parent)].get("readOnly", False)
        assert {mount["name"] for mount in mounts.values()} == {volume["name"] for volume in spec["volumes"]}
        assert container["ports"] == [{"name": "raxol-metrics", "containerPort": 9464}]


def test_every_option_of_the_command_is_told() -> None:
    """The page's table has exactly the options that `serve --help` has."""
    actions = build_parser()._subparsers
    assert actions is not None
    choices: Any = actions._group_actions[0].choices
    known = {name for name in choices["serve"]._option_string_actions if name.startswith("--")} - {"--help"}
    assert set(re.findall(r"^\| `(--[a-z-]+)", PAGE, re.MULTILINE)) == known
