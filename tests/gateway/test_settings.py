"""Configuration faults: each says file, line and path, and none says a secret."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pytest

from sluice.billing.prices import Price
from sluice.gateway.batch.doors import create_storage
from sluice.gateway.batch.settings import BatchSettings
from sluice.gateway.config_file import default_config, load_config
from sluice.gateway.environment import Environment
from sluice.gateway.settings import Config, OpenAIProvider
from sluice.gateway.startup_errors import ConfigError

GOOD = """\
providers:
  main:
    kind: openai
    api_key: ${MAIN_KEY}
    base_url: http://main/v1
  pool:
    kind: vllm
    replicas: [http://pool:8000]
  sim: {kind: simulator}
models:
  - name: alias
    context_length: 100
    capabilities: [chat]
    price:
      input_per_mtok: "0.15"
      output_per_mtok: 0.6
    deployments:
      - {provider: main, model: m, weight: 3}
      - provider: pool
        model: org/m
server:
  drain_seconds: 5
"""
SECRET = "sk-very-secret-0123456789abcdef"
ENV = {"MAIN_KEY": SECRET}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.yaml"


def load(file: Path, text: str, env: Mapping[str, str] | None = None) -> Config:
    file.write_text(text)
    return load_config(file, ENV if env is None else env)


def fault(file: Path, text: str, env: Mapping[str, str] | None = None) -> str:
    """The message, without the file's name, of a configuration that must be refused."""
    with pytest.raises(ConfigError) as caught:
        load(file, text, env)
    message = str(caught.value)
    assert all(line.startswith(f"{file}:") for line in message.splitlines())
    assert SECRET not in message
    return message.replace(f"{file}:", "")


def test_a_good_file_is_read(file: Path) -> None:
    config = load(file, GOOD)
    provider = config.providers["main"]
    assert isinstance(provider, OpenAIProvider)
    assert provider.api_key == SECRET
    assert config.secrets() == [SECRET]
    price = config.models[0].price
    assert price is not None
    assert price.price() == Price(150_000_000, 600_000_000, 150_000_000, 150_000_000)
    assert [d.weight for d in config.models[0].deployments] == [3, 100]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("drain_seconds: 5", "drain: 5", "22: server.drain: unknown field"),
        ("base_url:", "baseurl:", "5: providers.main.baseurl: unknown field"),
        ("    context_length:", "    budget: 5\n    context_length:", "12: models.0.budget: "),
        ("weight: 3", "wait: 3", "18: models.0.deployments.0.wait: unknown field"),
        ("server:", "servers:", "21: servers: unknown field"),
        ("provider: pool", "provider: pol", "19: models.0.deployments.1.provider: there is"),
        ("context_length: 100", "context_length: -1", "12: models.0.context_length: "),
        ("context_length: 100", "context_length: big", "12: models.0.context_length: "),
        ("    context_length: 100\n", "", "11: models.0.context_length: Field required"),
        ("[chat]", "[chat, fly]", "13: models.0.capabilities.1: "),
        ("[chat]", "[]", "13: models.0.capabilities: "),
        ("[chat]", "chat", "13: models.0.capabilities: "),
        ('"0.15"', '"-1"', "15: models.0.price.input_per_mtok: "),
        ('"0.15"', '"0.0000000001"', "15: models.0.price.input_per_mtok: "),
        ('"0.15"', "free", "15: models.0.price.input_per_mtok: "),
        ('"0.15"', ".nan", "15: models.0.price.input_per_mtok: "),
        ('"0.15"', ".inf", "15: models.0.price.input_per_mtok: "),
        ('"0.15"', '"1.00000000000000000000000000000000001"', "15: models.0.price"),
        ("name: alias", "name: a b", "11: models.0.name: "),
        ("name: alias", 'name: ""', "11: models.0.name: "),
        ("kind: openai", "kind: opnai", "2: providers.main: "),
        ("    kind: openai\n", "", "2: providers.main: "),
        ("http://main/v1", "main/v1", "5: providers.main.base_url: must be an http"),
        ("http://main/v1", "ftp://main", "5: providers.main.base_url: must be an http"),
        ("http://main/v1", "http://main:port/v1", "5: providers.main.base_url: must be an http"),
        ("http://main/v1", "http://main:70000", "5: providers.main.base_url: must be an http"),
        ("http://main/v1", "http://[::1", "5: providers.main.base_url: must be an http"),
        ("http://main/v1", "http:///v1", "5: providers.main.base_url: must be an http"),
        ("http://main/v1", "http://ma in/v1", "5: providers.main.base_url: must be an http"),
        ("[http://pool:8000]", "[pool]", "8: providers.pool.replicas: must be an http"),
        ("[http://pool:8000]", "[]", "6: providers.pool: needs `replicas`"),
        ("[http://pool:8000]", "[http://a, http://a]", "8: providers.pool.replicas: names a"),
        ("{kind: simulator}", "{kind: simulator, itl_ms: -1}", "9: providers.sim.itl_ms: "),
        ("drain_seconds: 5", "drain_seconds: soon", "22: server.drain_seconds: "),
        ("drain_seconds: 5", "max_body_bytes: 0", "22: server.max_body_bytes: "),
        ("weight: 3", "weight: -3", "18: models.0.deployments.0.weight: "),
        ("${MAIN_KEY}", "${OTHER_KEY}", "4: providers.main.api_key: the environment variable"),
        ("main/v1", "main/${HOST}", "5: providers.main.base_url: the environment variable HOST"),
    ],
)  # fmt: skip
def test_a_fault_has_a_line_and_a_path(file: Path, old: str, new: str, told: str) -> None:
    assert GOOD.count(old) == 1
    assert told in fault(file, GOOD.replace(old, new))


def test_all_faults_are_told_at_once(file: Path) -> None:
    text = GOOD.replace("drain_seconds: 5", "drain: 5").replace("context_length: 100", "x: 1")
    assert len(fault(file, text).splitlines()) == 3


def test_a_model_defined_twice_is_named(file: Path) -> None:
    model = GOOD[GOOD.index("  - name") : GOOD.index("server:")]
    text = GOOD.replace("server:", model + "server:")
    assert fault(file, text) == "21: models.1.name: `alias` is defined twice"


def test_a_model_that_no_deployment_serves_is_named(file: Path) -> None:
    text = GOOD.replace("weight: 3", "weight: 0").replace("org/m", "org/m\n        weight: 0")
    assert fault(file, text).startswith("17: models.0.deployments: no deployment has a weight")


@pytest.mark.parametrize("field", ["providers", "models"])
def test_nothing_to_serve_is_a_fault(file: Path, field: str) -> None:
    text = "providers:\n  sim: {kind: simulator}\nmodels: []\n"
    if field == "providers":
        text = "providers: {}\nmodels: []\n"
    assert f"{field}: " in fault(file, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "null",
        "- a\n",
        "text",
        "5",
        "a: [",
        "a: b: c",
        "a: 1\n---\nb: 2",
        "a: *unknown",
        "a: !unknown x",
        "a: 2024-99-99",
        "a: !!int x",
        "\t- a",
        "a: \x00",
        "[" * 20_000,
        "a: &x [*x]",
        "{[a]: b}",
    ],
)
def test_what_is_no_mapping_in_yaml_names_the_file(file: Path, text: str) -> None:
    fault(file, text)


def test_a_yaml_fault_has_its_line(file: Path) -> None:
    assert "line 6" in fault(file, GOOD.replace("base_url: http", "base_url: [http"))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a: \xe9"])
def test_a_file_in_another_encoding_is_named(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"gateway\.yaml: can't be read"):
        load_config(file, {})


def test_a_missing_file_is_named(file: Path, tmp_path: Path) -> None:
    for path in (file, tmp_path):
        with pytest.raises(ConfigError, match="can't be read: "):
            load_config(path, {})


@pytest.mark.parametrize("value", ["", None])
def test_an_unset_variable_is_named_where_it_stands(file: Path, value: str | None) -> None:
    env = {} if value is None else {"MAIN_KEY": value}
    assert fault(file, GOOD, env) == (
        "4: providers.main.api_key: the environment variable MAIN_KEY is not set"
    )


@pytest.mark.parametrize("text", ["$MAIN_KEY", "$${", "${}", "${1X}", "${MAIN_KEY", "$"])
def test_only_whole_references_are_replaced(file: Path, text: str) -> None:
    config = load(file, GOOD.replace("${MAIN_KEY}", f"'{text}'"), {})
    assert config.secrets() == [text]


def test_a_value_is_not_replaced_again(file: Path) -> None:
    env = {"MAIN_KEY": "${OTHER}", "OTHER": "x"}
    assert load(file, GOOD, env).secrets() == ["${OTHER}"]


@pytest.mark.parametrize("value", [f"{SECRET}\n", f" {SECRET}", f"{SECRET}é", f"a\r\nx: {SECRET}"])
def test_a_credential_that_no_header_can_carry_is_told_at_the_start(file: Path, value: str) -> None:
    message = fault(file, GOOD, {"MAIN_KEY": value})
    assert message.startswith("4: providers.main.api_key: must be printable ASCII")


@pytest.mark.parametrize(
    "change",
    [
        ("kind: openai", "kind: opnai"),
        ("http://main/v1", f"ftp://user:{SECRET}@main"),
        ("http://main/v1", f"http://user:{SECRET}"),
        ("http://main/v1", f"http://[{SECRET}"),
        ("http://main/v1", f"main?key={SECRET}"),
        ("[http://pool:8000]", f"[http://x:{SECRET}]"),
        ("${MAIN_KEY}", f"[{SECRET}]"),
        ("${MAIN_KEY}", f"{{{SECRET}: 1}}"),
        ("${MAIN_KEY}", f"{SECRET}: x"),
        ("${MAIN_KEY}", f'"{SECRET}'),
        ("drain_seconds: 5", "drain_seconds: ${MAIN_KEY}"),
        ("context_length: 100", "context_length: ${MAIN_KEY}"),
        ('"0.15"', "${MAIN_KEY}"),
        ("[chat]", "['${MAIN_KEY}']"),
    ],
)
def test_no_fault_tells_a_secret(file: Path, change: tuple[str, str]) -> None:
    fault(file, GOOD.replace(*change))


def test_a_provider_defined_twice_is_a_fault(file: Path) -> None:
    fault(file, GOOD.replace("  sim:", "  main: {kind: simulator}\n  sim:"))


class TestDefaults:
    def test_without_a_key_the_simulator_runs(self) -> None:
        config = default_config({})
        assert [model.name for model in config.models] == ["simulator"]
        assert config.secrets() == []

    def test_with_a_key_openai_runs(self) -> None:
        config = load_config(None, {"OPENAI_API_KEY": SECRET, "OPENAI_BASE_URL": "http://x/v1"})
        assert config.secrets() == [SECRET]
        assert all(model.price is not None for model in config.models)
        price = config.models[0].price
        assert price is not None
        assert price.cached_input_per_mtok == Decimal("0.075")


KEY = "k" * 32


class TestEnvironment:
    def test_nothing_is_needed(self) -> None:
        environment = Environment.read({})
        assert environment.database_url is None
        assert environment.spool == Path("sluice-spool")
        assert environment.files == Path("sluice-files")
        assert environment.url == "http://127.0.0.1:8080"
        assert not environment.is_worker
        assert environment.metrics_dir is None

    def test_everything_is_read(self) -> None:
        values = {
            "SLUICE_DATABASE_URL": "postgres://x",
            "SLUICE_REDIS_URL": "redis://x",
            "SLUICE_ADMIN_KEY": KEY,
            "SLUICE_BOOTSTRAP_KEY": KEY,
            "SLUICE_SPOOL_DIR": "/spool",
            "SLUICE_FILES_DIR": "/files",
            "SLUICE_URL": "http://g/",
            "SLUICE_WORKER": "1",
            "PROMETHEUS_MULTIPROC_DIR": "/metrics",
        }
        environment = Environment.read(values)
        assert (environment.database_url, environment.redis_url) == ("postgres://x", "redis://x")
        assert environment.spool == Path("/spool")
        assert environment.files == Path("/files")
        assert environment.admin_access().url == "http://g"
        assert environment.admin_access().key == environment.bootstrap_key == KEY
        assert environment.is_worker
        assert environment.metrics_dir == Path("/metrics")

    @pytest.mark.parametrize("name", ["SLUICE_DATABASE_URL", "SLUICE_REDIS_URL"])
    def test_empty_is_absent(self, name: str) -> None:
        environment = Environment.read({name: "", "SLUICE_SPOOL_DIR": "", "SLUICE_URL": ""})
        assert environment == Environment.read({})

    @pytest.mark.parametrize("name", ["SLUICE_ADMIN_KEY", "SLUICE_BOOTSTRAP_KEY"])
    @pytest.mark.parametrize(
        "key", ["k" * 31, "k" * 31 + " k", "é" * 32, "k" * 32 + "\n", "\x00" * 32]
    )
    def test_a_weak_or_odd_key_is_refused_and_not_told(self, name: str, key: str) -> None:
        with pytest.raises(ConfigError, match=name) as caught:
            Environment.read({name: key})
        assert key not in str(caught.value)

    def test_without_an_admin_key_there_is_no_access(self) -> None:
        with pytest.raises(ConfigError, match="SLUICE_ADMIN_KEY is not set"):
            Environment.read({}).admin_access()


def test_models_may_all_be_in_the_registry(file: Path) -> None:
    pool = "providers:\n  pool: {kind: vllm, replicas: ['http://pool:8000']}\n"
    file.write_text(pool)
    assert load_config(file, {}).models == []
    without = pool.replace("vllm, replicas: ['http://pool:8000']", "simulator")
    assert "models: is empty" in fault(file, without)
    assert "models: is empty" in fault(file, f"{without}models: []\n")


class TestStorage:
    def test_options_that_are_credentials_are_secrets(self) -> None:
        settings = BatchSettings(
            storage="s3://bucket",
            storage_options={"region": "x", "secret_access_key": "S1", "SESSION_TOKEN": "S2"},
        )
        assert settings.storage_secrets() == ["S1", "S2"]

    def test_a_url_holds_no_credentials(self) -> None:
        with pytest.raises(ValueError, match="storage_options"):
            BatchSettings(storage="s3://key:secret@bucket")

    def test_a_place_that_there_is_not(self) -> None:
        with pytest.raises(ConfigError, match=r"batch\.storage: .*nonsense"):
            create_storage(BatchSettings(storage="nonsense://x"), Path("unused"))
