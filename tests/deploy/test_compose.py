"""What can be known about the deployment files without a Docker engine."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import click
import promql_parser as promql
import pytest
import yaml
from dockerfile_parse import DockerfileParser  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
CONFIG = ROOT / "deploy/sluice.yaml"
PROMETHEUS = ROOT / "deploy/prometheus/prometheus.yml"
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
GRAFANA = ROOT / "deploy/grafana"
DASHBOARD = GRAFANA / "dashboards/gateway.json"
DASHBOARDS = sorted(DASHBOARD.parent.glob("*.json"))

SECRETS = {
    "SLUICE_ADMIN_KEY": "a" * 32,
    "SLUICE_BOOTSTRAP_KEY": "b" * 32,
    "POSTGRES_PASSWORD": "c" * 32,
}
OPERATOR = SECRETS | {"OPENAI_API_KEY": "d" * 32}
REFERENCE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")
SCRAPED = {"job", "instance"}


def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


SERVICES: dict[str, dict[str, Any]] = parsed(COMPOSE)["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
GROUPS: list[dict[str, Any]] = parsed(ALERTS)["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
BOARDS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in DASHBOARDS}
PANELS: list[dict[str, Any]] = [panel for board in BOARDS.values() for panel in board["panels"]]
VARIABLES: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["templating"]["list"]


def interpolated(text: str) -> str:
    def value(reference: re.Match[str]) -> str:
        name, kind, rest = reference.groups()
        return OPERATOR.get(name) or (rest if kind == "-" else "")

    return REFERENCE.sub(value, text)


def environment_of(service: dict[str, Any]) -> dict[str, str]:
    return {name: interpolated(str(text)) for name, text in service["environment"].items()}


def mounts() -> Iterator[str]:
    for service in SERVICES.values():
        yield from (volume.split(":")[0] for volume in service.get("volumes", []))


# The compose file


def test_compose_follows_its_specification() -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*check, COMPOSE], check=True)


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_waits_for_can_come_true(name: str) -> None:
    for target, wait in SERVICES[name].get("depends_on", {}).items():
        awaited = SERVICES[target]
        assert set(awaited.get("profiles", [])) <= set(SERVICES[name].get("profiles", []))
        if wait["condition"] == "service_healthy":
            assert "test" in awaited["healthcheck"]
        if wait["condition"] == "service_completed_successfully":
            assert awaited["restart"] == "no"


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_says_how_it_lives_and_dies(name: str) -> None:
    service = SERVICES[name]
    assert service["restart"] == ("no" if name == "migrate" else "unless-stopped")
    assert "healthcheck" in service
    assert name in OURS or re.search(r":v?\d", service["image"]), "pin the image"


@pytest.mark.parametrize("name", OURS)
def test_draining_ends_before_the_grace_does(name: str) -> None:
    from sluice.gateway.config_file import load_config

    drain = load_config(CONFIG, OPERATOR).server.drain_seconds
    assert float(OURS[name]["stop_grace_period"].removesuffix("s")) > drain + 5


@pytest.mark.parametrize("name", OURS)
def test_the_cli_understands_the_command_of(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sluice.gateway.cli import main

    command, *arguments = shlex.split(OURS[name]["command"])
    for variable, value in environment_of(OURS[name]).items():
        monkeypatch.setenv(variable, value)
    found = main.get_command(click.Context(main), command)
    assert found is not None
    found.make_context(command, arguments)


def test_mounted_paths_exist() -> None:
    volumes = parsed(COMPOSE)["volumes"]
    for source in mounts():
        assert source in volumes or (ROOT / source).exists(), source


@pytest.mark.parametrize("secret", SECRETS)
def test_compose_refuses_to_start_without(secret: str) -> None:
    references = [match.groups() for match in REFERENCE.finditer(COMPOSE.read_text())]
    kinds = [(kind, bool(message)) for name, kind, message in references if name == secret]
    assert kinds
    assert set(kinds) == {("?", True)}


def test_no_secret_stands_in_a_file() -> None:
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if re.search(r"KEY$|PASSWORD$|TOKEN$|SECRET$", name):
                assert REFERENCE.fullmatch(value), name
            assert not re.search(r"://\w+:[^$@]+@", str(value)), name
    for key in re.findall(r"api_key: *(\S+?)[,}]", CONFIG.read_text()):
        assert key.startswith('"${'), key


# The example configuration


def uncommented(text: str) -> str:
    return re.sub(r"^  # ", "  ", text, flags=re.MULTILINE)


def test_the_example_configuration_loads() -> None:
    from sluice.gateway.config_file import load_config

    load_config(CONFIG, environment_of(OURS["gateway"]))


def test_its_commented_examples_load_too(tmp_path: Path) -> None:
    from sluice.gateway.config_file import load_config

    everything = tmp_path / "sluice.yaml"
    everything.write_text(uncommented(CONFIG.read_text()))
    assert len(parsed(everything)["models"]) > len(parsed(CONFIG)["models"])
    load_config(everything, environment_of(OURS["gateway"]))


def test_the_example_replica_is_the_vllm_service() -> None:
    everything = yaml.safe_load(uncommented(CONFIG.read_text()))
    assert everything["providers"]["gpu"]["replicas"] == ["http://vllm:8000"]
    served = re.search(r"--served-model-name (\S+)", SERVICES["vllm"]["command"])
    used = [d for m in everything["models"] for d in m["deployments"] if d["provider"] == "gpu"]
    assert served
    assert {deployment["model"] for deployment in used} == {served[1]}


# The image


def instructions() -> list[tuple[str, str]]:
    parser = DockerfileParser(fileobj=BytesIO((ROOT / "Dockerfile").read_bytes()))
    return [(line["instruction"], line["value"]) for line in parser.structure]


def values_of(instruction: str) -> list[str]:
    return [value for name, value in instructions() if name == instruction]


def test_the_image_is_built_apart_and_runs_without_root() -> None:
    assert [base.split()[0] for base in values_of("FROM")] == ["python:3.11-slim"] * 2
    assert values_of("USER") == ["sluice"]
    assert values_of("ENTRYPOINT") == ['["sluice"]']
    assert "/health/live" in values_of("HEALTHCHECK")[0]
    assert "--constraint requirements/runtime.txt" in values_of("RUN")[1]


def test_the_image_copies_what_exists_and_is_sent_to_the_builder() -> None:
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    for copy in values_of("COPY"):
        if copy.startswith("--from"):
            continue
        for source in copy.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in sent


# Prometheus and Grafana


def recorded() -> set[str]:
    return {rule["record"] for rule in RULES if "record" in rule}


def exported() -> dict[str, set[str]]:
    """The labels of every series that a query may name."""
    from sluice.gateway.batch.companions import CompanionMetrics
    from sluice.gateway.batch.metrics import BatchMetrics
    from sluice.gateway.metrics import Metrics

    registry = Metrics().registry
    BatchMetrics(registry)
    CompanionMetrics(registry)
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    series: dict[str, set[str]] = {name: {"model"} for name in recorded()} | {"up": set()}
    for name, metric in registry._names_to_collectors.items():
        if name.endswith(suffixes.get(getattr(metric, "_type", ""), ())):
            series[name] = {*getattr(metric, "_labelnames", ()), "le"}
    return series


def expressions() -> list[str]:
    panels = [target["expr"] for panel in PANELS for target in panel["targets"]]
    return [rule["expr"] for rule in RULES] + [e.replace("$__rate_interval", "5m") for e in panels]


def nodes(expression: str) -> list[Any]:
    found: list[Any] = []
    promql.walk(promql.parse(expression), found.append)
    return found


@pytest.mark.parametrize("expression", expressions())
def test_a_query_names_only_what_the_gateway_exports(expression: str) -> None:
    series = exported()
    reachable = set(SCRAPED)
    for selector in nodes(expression):
        if isinstance(selector, promql.VectorSelector):
            assert selector.name in series
            labels = series[selector.name] | SCRAPED
            assert {matcher.name for matcher in selector.matchers.matchers} <= labels
            reachable |= labels
    for aggregate in nodes(expression):
        if isinstance(aggregate, promql.AggregateExpr) and aggregate.modifier:
            assert set(aggregate.modifier.labels) <= reachable


def test_the_walk_sees_selectors_inside_functions() -> None:
    found = nodes('sum by (a) (rate(first{x="1"}[5m])) / histogram_quantile(0.5, second)')
    names = {node.name for node in found if isinstance(node, promql.VectorSelector)}
    assert names == {"first", "second"}


def test_the_dashboards_variables_name_exported_labels() -> None:
    for variable in VARIABLES:
        query = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"])
        assert query
        assert query[2] in exported()[query[1]]


def test_every_alert_says_who_acts_and_why() -> None:
    alerts = [rule for rule in RULES if "alert" in rule]
    assert alerts
    for alert in alerts:
        assert alert["labels"]["severity"] in {"page", "ticket"}
        assert alert["annotations"]["summary"]


def test_both_windows_of_a_burn_have_their_rule() -> None:
    used = set(re.findall(r"slo:\w+:\w+", "".join(expressions())))
    assert used == recorded()


def test_monitoring_reaches_services_that_exist() -> None:
    for job in parsed(PROMETHEUS)["scrape_configs"]:
        (lookup,) = job["dns_sd_configs"]
        assert set(lookup["names"]) <= set(SERVICES)
    assert parsed(PROMETHEUS)["rule_files"] == [ALERTS.name]
    (source,) = parsed(GRAFANA / "provisioning/datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert {panel["datasource"]["uid"] for panel in PANELS} == {source["uid"]}


def test_the_dashboard_is_where_grafana_looks() -> None:
    (provider,) = parsed(GRAFANA / "provisioning/dashboards/dashboards.yml")["providers"]
    mounted = f"./{DASHBOARD.parent.relative_to(ROOT)}:{provider['options']['path']}:ro"
    assert mounted in SERVICES["grafana"]["volumes"]


def test_dashboards_and_panels_have_ids_of_their_own() -> None:
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS) == 3
    for board in BOARDS.values():
        ids = [panel["id"] for panel in board["panels"]]
        assert ids == sorted(set(ids))


def test_each_metric_of_batches_and_auto_is_shown() -> None:
    queries = " ".join(expressions())
    names = {
        name
        for name in exported()
        if name.startswith(("gw_batch", "gw_auto")) and not name.endswith(("_created", "_info"))
    }
    assert {name for name in names if name not in queries} == set()


@pytest.mark.parametrize("name", BOARDS)
def test_panels_neither_overlap_nor_overflow(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for at in (panel["gridPos"] for panel in BOARDS[name]["panels"]):
        columns, rows = range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])
        cells = {(column, row) for column in columns for row in rows}
        assert columns.stop <= 24
        assert not cells & taken
        taken |= cells


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None and "CI" in os.environ:
        pytest.fail("promtool is missing: install Debian's package prometheus")
    if found is None:
        pytest.skip("promtool is not installed (CI has it)")
    return found


def test_prometheus_accepts_its_files(promtool: str) -> None:
    subprocess.run([promtool, "check", "config", PROMETHEUS], check=True)


TTFT = "gen_ai_server_time_to_first_token_seconds"
UP = {'up{job="gateway"}': "1x90"}
OK = {'gw_requests_total{outcome="ok"}': "0+95x90"}


def in_every_window(alert: str) -> list[str]:
    return [f'alertname="{alert}", window="{window}"' for window in ("1h", "6h", "1d", "3d")]


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        pytest.param(UP | OK, [], id="all is well"),
        pytest.param({}, ['alertname="NoGatewayScraped"'], id="nobody answers"),
        pytest.param(
            UP | OK | {'gw_requests_total{outcome="upstream_error"}': "0+5x90"},
            in_every_window("AvailabilityBurn"),
            id="one request in twenty fails",
        ),
        pytest.param(
            UP
            | OK
            | {'gw_requests_total{outcome="internal_error"}': "0+0x90"}
            | {'gw_requests_total{outcome="client_error"}': "0+95x90"}
            | {'gw_requests_total{outcome="cancelled"}': "0+95x90"}
            | {'gw_requests_total{outcome="limited"}': "0+95x90"},
            [],
            id="clients err, leave and are limited",
        ),
        pytest.param(
            UP
            | {'gw_requests_total{outcome="ok"}': "0+1x90"}
            | {'gw_requests_total{outcome="upstream_error"}': "0x60 1x29"},
            [],
            id="one failure on a quiet day",
        ),
        pytest.param(
            UP
            | {f'{TTFT}_bucket{{model="m", tier="interactive", le="2.5"}}': "0+10x90"}
            | {f'{TTFT}_count{{model="m", tier="interactive"}}': "0+100x90"},
            in_every_window("FirstTokenBurn"),
            id="first tokens are slow",
        ),
        pytest.param(
            UP
            | {'gw_upstream_attempts_total{provider="p", reason="http_503"}': "0+30x90"}
            | {'gw_upstream_attempts_total{provider="p", reason="ok"}': "0+60x90"}
            | {'gw_upstream_attempts_total{provider="q", reason="http_400"}': "0+60x90"}
            | {'gw_upstream_attempts_total{provider="q", reason="ok"}': "0+60x90"},
            ['alertname="ProviderFailing"'],
            id="fallbacks hide a provider's failures",
        ),
        pytest.param(
            UP | {"gw_usage_spooled_bytes": "1000x90"},
            ['alertname="UsageSpooling"'],
            id="usage is spooled",
        ),
        pytest.param(
            UP | {"gw_usage_stream_entries": "2000x90"},
            ['alertname="LedgerBehind"'],
            id="the ledger is behind",
        ),
        pytest.param(
            UP
            | {"gw_batch_items_waiting": "5000-50x90"}
            | {"gw_batch_oldest_seconds": "0+60x90"}
            | {"gw_batch_window_seconds": "86400-60x90"}
            | {'gw_batch_items_total{outcome="ok"}': "0+49x90"}
            | {'gw_batch_items_total{outcome="failed"}': "0+1x90"}
            | {'gw_batch_items_total{outcome="given_up"}': "0x90"}
            | {'gw_batch_items_total{outcome="lost"}': "0x90"}
            | {'gw_batches_ended_total{state="completed"}': "0+1x90"}
            | {'gw_batches_ended_total{state="expired"}': "0x90"}
            | {'gw_batch_native_items_total{provider="p", outcome="ok"}': "0+50x90"}
            | {'gw_batch_native_items_total{provider="p", outcome="live"}': "0+1x90"}
            | {'gw_batch_callbacks_total{outcome="failed"}': "0+1x90"}
            | {'gw_auto_comparisons_total{outcome="compared"}': "0+2x90"}
            | {'gw_auto_comparisons_total{outcome="failed"}': "0+1x90"}
            | {'gw_auto_comparisons_total{outcome="over_budget"}': "0+50x90"},
            [],
            id="batches and comparisons go on",
        ),
        pytest.param(
            UP | {'gw_batches_ended_total{state="expired"}': "0x70 1x20"},
            ['alertname="BatchesExpire"'],
            id="a batch has expired",
        ),
        pytest.param(
            UP
            | {'gw_batch_items_waiting{instance="a"}': "10x90"}
            | {'gw_batch_items_waiting{instance="b"}': "10x90"}
            | {'gw_batch_items_total{outcome="ok"}': "0+1x40 40x50"}
            | {'gw_batch_items_total{outcome="waits"}': "0+100x90"},
            ['alertname="BatchesStand"'],
            id="nothing is done of a batch",
        ),
        pytest.param(
            UP | {"gw_batch_oldest_seconds": "43000+60x90"},
            ['alertname="BatchWaitsLong"'],
            id="a batch waits for half a day",
        ),
        pytest.param(
            UP | {'gw_batch_items_total{outcome="given_up"}': "0x70 1x20"},
            ['alertname="BatchItemsGivenUp"'],
            id="an item kills workers",
        ),
        pytest.param(
            UP | {'gw_batch_items_total{outcome="lost"}': "0x51 20x40"},
            ['alertname="BatchWorkersLost"'],
            id="a worker is gone",
        ),
        pytest.param(
            UP
            | {'gw_batch_native_items_total{provider="p", outcome="live"}': "0+10x90"}
            | {'gw_batch_native_items_total{provider="p", outcome="ok"}': "0+2x90"}
            | {'gw_batch_native_items_total{provider="q", outcome="ok"}': "0+10x90"},
            ['alertname="NativeBatchesComeToNothing"'],
            id="a provider's batches come to nothing",
        ),
        pytest.param(
            UP | {'gw_batch_callbacks_total{outcome="gave_up"}': "0x70 1x20"},
            ['alertname="CallbacksGivenUp"'],
            id="a team does not hear of its batch",
        ),
        pytest.param(
            UP
            | {'gw_auto_comparisons_total{outcome="no_verdict"}': "0+2x90"}
            | {'gw_auto_comparisons_total{outcome="compared"}': "0+1x90"},
            ['alertname="AutoComparisonsFail"'],
            id="the judge gives no verdicts",
        ),
        pytest.param(
            UP
            | {'gw_auto_score_psi{alias="auto"}': "0.3x90"}
            | {'gw_auto_outcome_drop{alias="auto"}': "0.05x90"},
            ['alertname="AutoAnswersWorse"', 'alertname="AutoTrafficDrifted"'],
            id="traffic and answers have changed",
        ),
    ],
)
def test_an_alert_fires_when(
    series: dict[str, str], expected: list[str], promtool: str, tmp_path: Path
) -> None:
    firing = {
        "expr": 'group by (alertname, window) (ALERTS{alertstate="firing"})',
        "eval_time": "80m",
        "exp_samples": [{"labels": f"{{{labels}}}", "value": 1} for labels in expected],
    }
    day = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [firing],
    }
    plan = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [day]}
    (tmp_path / "plan.yml").write_text(yaml.safe_dump(plan))
    subprocess.run([promtool, "test", "rules", tmp_path / "plan.yml"], check=True)
