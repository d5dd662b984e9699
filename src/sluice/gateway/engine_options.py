"""The simulated engine's options: in the configuration file and on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from pydantic import BaseModel, ConfigDict, Field, field_validator

from sluice.backends.engine import EngineConfig, Pace, Policy
from sluice.backends.engine.presets import preset, preset_names
from sluice.backends.simulator import SimulatorConfig

_Command = TypeVar("_Command", bound=Callable[..., Any])


class EngineSettings(BaseModel):
    """An engine that the simulator's answers share; names as vLLM's where it has one.

    `preset` is a pace measured on a real engine, in place of `prefill_rate` and the provider's
    `ttft_ms` and `itl_ms`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kv_blocks: int = Field(1000, ge=1)
    block_size: int = Field(16, ge=1)
    max_num_seqs: int = Field(256, ge=1)
    max_num_batched_tokens: int = Field(2048, ge=1)
    scheduling_policy: Policy = Policy.FCFS
    enable_prefix_caching: bool = True
    max_num_queued_reqs: int | None = Field(None, ge=0)
    max_num_queued_tokens: int | None = Field(None, ge=0)
    prefill_rate: float = Field(8000.0, gt=0)
    preset: str | None = None

    @field_validator("preset")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        if value is not None and value not in preset_names():
            raise ValueError(f"must be one of: {', '.join(preset_names())}")
        return value

    def config(self, ttft_seconds: float, itl_seconds: float) -> EngineConfig:
        """The engine, with a provider's times.

        Args:
            ttft_seconds: what the first token takes besides the prompt's computation.
            itl_seconds: the least time between two tokens.
        """
        return EngineConfig(
            num_blocks=self.kv_blocks,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            policy=self.scheduling_policy,
            prefix_caching=self.enable_prefix_caching,
            max_num_queued_reqs=self.max_num_queued_reqs,
            max_num_queued_tokens=self.max_num_queued_tokens,
            pace=self._pace(ttft_seconds, itl_seconds),
        )

    def _pace(self, ttft_seconds: float, itl_seconds: float) -> Pace:
        if self.preset is not None:
            return preset(self.preset)
        return Pace(
            # Steps always take some time, or an answer would have no length in it.
            floor_seconds=max(itl_seconds, 1e-5),
            prefill_token_seconds=1 / self.prefill_rate,
            request_seconds=ttft_seconds,
        )


def simulator_config(
    ttft_ms: float, itl_ms: float, engine: EngineSettings | None
) -> SimulatorConfig:
    """A simulator at this pace, each answer by itself or all of them in an engine."""
    ttft, itl = ttft_ms / 1000, itl_ms / 1000
    if engine is None:
        return SimulatorConfig(ttft, itl)
    return SimulatorConfig(ttft, itl, engine=engine.config(ttft, itl))


def _known_preset(
    _context: click.Context, _option: click.Parameter, name: str | None
) -> str | None:
    if name is not None and name not in preset_names():
        raise click.BadParameter(f"must be one of: {', '.join(preset_names())}")
    return name


_SIZE = click.IntRange(min=1)
_CAP = click.IntRange(min=0)
_OPTIONS = (
    click.option("--kv-blocks", type=_SIZE, help="Blocks of the KV cache."),
    click.option("--block-size", type=_SIZE, help="Tokens in a block."),
    click.option("--max-num-seqs", type=_SIZE, help="Requests that run at once."),
    click.option("--max-num-batched-tokens", type=_SIZE, help="Tokens of one step."),
    click.option("--scheduling-policy", type=click.Choice([policy.value for policy in Policy])),
    click.option("--enable-prefix-caching/--no-enable-prefix-caching", default=None),
    click.option("--max-num-queued-reqs", type=_CAP, help="Unfinished requests before a 503."),
    click.option("--max-num-queued-tokens", type=_CAP, help="Queued prompt tokens before a 503."),
    click.option("--prefill-rate", type=click.FloatRange(min=0, min_open=True), help="Tokens/s."),
    click.option("--preset", callback=_known_preset, help="A measured engine's pace, by name."),
)


def engine_options(command: _Command) -> _Command:
    """Add the options to a command, which takes them as `**engine`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def engine_settings(options: dict[str, Any]) -> EngineSettings | None:
    """The engine that those options describe; None when there is no option."""
    given = {name: value for name, value in options.items() if value is not None}
    return EngineSettings(**given) if given else None
