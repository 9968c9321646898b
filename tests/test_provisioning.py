"""The provisioning examples: each is taken by its own program where there is one, and refers to what is there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from tests.rules_files import ALERT_RULES, DASHBOARDS, load, said, tool

if TYPE_CHECKING:
    from pathlib import Path

PROVISIONING: Final = DASHBOARDS / "provisioning"
FILES: Final = sorted(path for path in PROVISIONING.rglob("*") if path.suffix in {".yaml", ".yml"})
COMPOSE: Final = load(PROVISIONING / "docker-compose.yaml")
PROMETHEUS: Final = load(PROVISIONING / "prometheus.yml")
COLLECTOR: Final = load(PROVISIONING / "otel-collector.yaml")


def receiver(**labels: str) -> str:
    """Where Alertmanager would send an alert with these labels."""
    labelled = [f"{name}={value}" for name, value in labels.items()]
    config = f"--config.file={PROVISIONING / 'alertmanager.yml'}"
    told = said(tool("amtool", "prometheus-alertmanager"), "config", "routes", "test", config, *labelled)
    return told.splitlines()[-1] if "Warning" not in told.splitlines()[-1] else told.splitlines()[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_yaml_that_says_what_it_is_for(path: Path) -> None:
    """One document, a mapping without repeated keys, and a comment to begin with."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert isinstance(yaml.safe_load(text), dict)
    assert repeated(yaml.compose(text, Loader=yaml.SafeLoader)) == []


def repeated(node: yaml.Node | None) -> list[str]:
    """The keys that stand twice in one mapping; YAML's loader would take the last and say nothing."""
    if isinstance(node, yaml.MappingNode):
        keys: list[str] = [key.value for key, _ in node.value]
        below = [name for _, value in node.value for name in repeated(value)]
        return [*sorted({key for key in keys if keys.count(key) > 1}), *below]
    if isinstance(node, yaml.SequenceNode):
        return [name for value in node.value for name in repeated(value)]
    return []


def test_a_repeated_key_is_found() -> None:
    """The check above sees one, however deep."""
    assert repeated(yaml.compose("a: [{b: 1, c: 2, b: 3}]", Loader=yaml.SafeLoader)) == ["b"]


def test_prometheus_takes_its_configuration_and_the_rules_beside_it() -> None:
    """By promtool, which follows the rule files."""
    told = said(tool("promtool", "prometheus"), "check", "config", PROVISIONING / "prometheus.yml")
    assert len(re.findall(r"SUCCESS: \d+ rules found", told)) == 2


def test_prometheus_scrapes_under_the_name_that_alerts_look_for() -> None:
    """The job of the exporter is the one of the rules; every target has a cluster."""
    jobs = {job["job_name"] for job in PROMETHEUS["scrape_configs"]}
    assert jobs == {"raxol-fleet", "raxol-agent"}
    looked_for = {name for rule in ALERT_RULES for name in re.findall(r'\bjob="([^"]*)"', rule["expr"])}
    assert looked_for == {"raxol-fleet"}
    configs = [one for job in PROMETHEUS["scrape_configs"] for one in job["static_configs"]]
    assert all("cluster" in one["labels"] for one in configs)


def test_alertmanager_takes_its_configuration() -> None:
    """By amtool."""
    said(tool("amtool", "prometheus-alertmanager"), "check-config", PROVISIONING / "alertmanager.yml")


@pytest.mark.parametrize("rule", ALERT_RULES, ids=lambda rule: str(rule["alert"]))
def test_what_is_critical_goes_to_the_pager_and_warnings_to_the_chat(rule: dict[str, Any]) -> None:
    """Every alert, by its own labels."""
    wanted = {"critical": "pager", "warning": "chat"}[rule["labels"]["severity"]]
    assert receiver(alertname=rule["alert"], **rule["labels"]) == wanted


def test_inhibitions_speak_of_alerts_that_there_are() -> None:
    """A name that was changed in the rules would silence nothing any more."""
    names = {rule["alert"] for rule in ALERT_RULES}
    config = load(PROVISIONING / "alertmanager.yml")
    matchers = [
        one for rule in config["inhibit_rules"] for key in ("source_matchers", "target_matchers") for one in rule[key]
    ]
    told = {name for one in matchers if one.startswith("alertname") for name in one.split('"')[1].split("|")}
    assert told
    assert told <= names


def test_an_exemplar_leads_to_the_trace() -> None:
    """The label that our exemplars carry, and a data source that is provisioned."""
    sources = {one["type"]: one for one in load(PROVISIONING / "grafana" / "datasources.yaml")["datasources"]}
    (destination,) = sources["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert destination["name"] == "trace_id"
    assert destination["datasourceUid"] == sources["tempo"]["uid"]
    assert sources["tempo"]["jsonData"]["tracesToMetrics"]["datasourceUid"] == sources["prometheus"]["uid"]


def test_the_collectors_pipelines_are_of_parts_that_there_are() -> None:
    """Every part that is used is configured, and the other way round."""
    service = COLLECTOR["service"]
    assert set(service["extensions"]) == COLLECTOR["extensions"].keys()
    for kind in ("receivers", "processors", "exporters"):
        used = {part for pipeline in service["pipelines"].values() for part in pipeline[kind]}
        assert used == COLLECTOR[kind].keys()


def test_a_compose_service_mounts_what_is_there_and_names_services_that_are() -> None:
    """Files beside the compose file, volumes that are declared, hosts that other files talk to."""
    for service in COMPOSE["services"].values():
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            if source.startswith("."):
                assert (PROVISIONING / source).exists()
            elif not source.startswith("$"):
                assert source in COMPOSE["volumes"]
    targets = [
        target for job in PROMETHEUS["scrape_configs"] for one in job["static_configs"] for target in one["targets"]
    ]
    assert targets == ["exporter:9464"]
    sources = load(PROVISIONING / "grafana" / "datasources.yaml")["datasources"]
    hosts = {re.split("[/:]+", one["url"])[1] for one in sources} | {target.split(":")[0] for target in targets}
    hosts |= {COLLECTOR["exporters"]["otlp/tempo"]["endpoint"].split(":")[0]}
    assert hosts <= COMPOSE["services"].keys()


def test_grafana_is_given_the_boards_where_it_looks_for_them() -> None:
    """The provider's path is where the compose file mounts the shipped folder."""
    (provider,) = load(PROVISIONING / "grafana" / "dashboards.yaml")["providers"]
    mounts = dict(mount.split(":")[:2] for mount in COMPOSE["services"]["grafana"]["volumes"])
    assert mounts["../grafana"] == provider["options"]["path"]
    assert not provider["allowUiUpdates"]


def test_the_readme_names_every_file_and_says_what_was_not_run() -> None:
    """What has no check of its own program is told."""
    text = (PROVISIONING / "README.md").read_text(encoding="utf-8")
    for path in FILES:
        assert f"`{path.relative_to(PROVISIONING)}`" in text
    for name in ("Grafana server", "Tempo", "Collector", "Docker"):
        assert name in text.partition("**Not run**")[2]
