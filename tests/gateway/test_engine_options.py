"""The simulated engine's options become an engine."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from sluice.backends.engine import Policy
from sluice.backends.engine.presets import preset, preset_names
from sluice.gateway.cli import main
from sluice.gateway.engine_options import EngineSettings, engine_settings, simulator_config
from sluice.gateway.settings import SimulatorProvider


def test_without_an_option_there_is_no_engine() -> None:
    assert engine_settings({"kv_blocks": None, "preset": None}) is None
    assert simulator_config(20, 5, None).engine is None


def test_one_option_is_enough() -> None:
    settings = engine_settings({"kv_blocks": 7, "preset": None})
    assert settings == EngineSettings(kv_blocks=7)


def test_the_engine_has_the_providers_pace() -> None:
    provider = SimulatorProvider.model_validate(
        {
            "kind": "simulator",
            "ttft_ms": 30,
            "itl_ms": 4,
            "engine": {"prefill_rate": 1000, "scheduling_policy": "priority"},
        }
    )
    engine = simulator_config(provider.ttft_ms, provider.itl_ms, provider.engine).engine
    assert engine is not None
    assert engine.policy is Policy.PRIORITY
    assert engine.pace.request_seconds == 0.03
    assert engine.pace.floor_seconds == 0.004
    assert engine.pace.prefill_token_seconds == 0.001


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_the_whole_pace(name: str) -> None:
    engine = simulator_config(30, 4, EngineSettings(preset=name)).engine
    assert engine is not None
    assert engine.pace == preset(name)


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(ValidationError, match="must be one of: cpu-tiny"):
        EngineSettings(preset="h100")
    result = CliRunner().invoke(main, ["simulator", "--preset", "h100"])
    assert result.exit_code == 2
    assert "must be one of: cpu-tiny" in result.output
