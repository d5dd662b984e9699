"""The configuration file, read: YAML, variables, and errors that name the line.

Without a file there are defaults, by the providers whose keys are in the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from sluice.gateway.settings import Config, VLLMProvider
from sluice.gateway.startup_errors import ConfigError
from sluice.router.auto.documents import split_mode


def load_config(path: Path | None, env: Mapping[str, str] | None = None) -> Config:
    """Read and check a configuration.

    Args:
        path: the YAML file; None for the default (see `default_config`).
        env: where `${NAME}` is looked up; the process's environment by default.

    Raises:
        ConfigError: with file, line and path of each fault.
    """
    values = os.environ if env is None else env
    if path is None:
        return default_config(values)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path}: can't be read: {reason}") from None
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {_yaml_fault(error)}") from None
    except ValueError as error:  # a scalar that is no date or number, though it looks like one
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not valid YAML: nested too deeply") from None
    where = _Lines(str(path), tree)
    where.refuse_duplicates()
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must be a mapping with `providers` and `models`")
    try:
        data = _with_environment(data, values, where)
    except RecursionError:
        raise ConfigError(f"{path}: an alias contains itself") from None
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(_faults(error, where))) from None
    _check_references(config, where)
    _check_routing(config, where)
    return config


def default_config(env: Mapping[str, str]) -> Config:
    """What runs without a file: the providers whose keys are in the environment, else the
    simulator."""
    names = [name for name in ("openai", "anthropic") if env.get(f"{name.upper()}_API_KEY")]
    parts = [_default(name, env) for name in names or ["simulator"]]
    return Config.model_validate(
        {
            "providers": {
                name: given for part in parts for name, given in part["providers"].items()
            },
            "models": [model for part in parts for model in part["models"]],
        }
    )


def _default(name: str, env: Mapping[str, str]) -> dict[str, Any]:
    """A provider's defaults, with its optional address left out where it isn't set."""
    file = resources.files("sluice.gateway").joinpath(f"defaults/{name}.yaml")
    data: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    for provider in data["providers"].values():
        if not env.get(f"{name.upper()}_BASE_URL"):
            provider.pop("base_url", None)
    filled: dict[str, Any] = _with_environment(data, env, _Lines(file.name, None))
    return filled


_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def _with_environment(value: Any, env: Mapping[str, str], where: _Lines, *path: Any) -> Any:
    if isinstance(value, dict):
        return {k: _with_environment(v, env, where, *path, k) for k, v in value.items()}
    if isinstance(value, list):
        return [_with_environment(v, env, where, *path, i) for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value
    for name in _VARIABLE.findall(value):
        if not env.get(name):
            raise ConfigError(where.fault(path, f"the environment variable {name} is not set"))
    return _VARIABLE.sub(lambda match: env[match.group(1)], value)


def _check_references(config: Config, where: _Lines) -> None:
    seen: set[str] = set()
    names = {model.name for model in config.models}
    for index, model in enumerate(config.models):
        if model.name in seen:
            raise ConfigError(
                where.fault(("models", index, "name"), f"`{model.name}` is defined twice")
            )
        seen.add(model.name)
        for position, deployment in enumerate(model.deployments):
            path = ("models", index, "deployments", position, "provider")
            if deployment.provider not in config.providers:
                raise ConfigError(
                    where.fault(path, f"there is no provider `{deployment.provider}`")
                )
        for chain in ("fallbacks", "context_fallbacks", "content_fallbacks"):
            for position, name in enumerate(getattr(model, chain)):
                if name not in names or name == model.name:
                    raise ConfigError(
                        where.fault(
                            ("models", index, chain, position), f"there is no other model `{name}`"
                        )
                    )
        if not any(deployment.weight for deployment in model.deployments):
            raise ConfigError(
                where.fault(("models", index, "deployments"), "no deployment has a weight above 0")
            )


def _check_routing(config: Config, where: _Lines) -> None:
    """Aliases are no models, and what they name is: but the registry may have it."""
    names = {model.name for model in config.models}
    registry = any(isinstance(each, VLLMProvider) for each in config.providers.values())
    for alias, policy in (config.routing or {}).items():
        if alias in names:
            raise ConfigError(where.fault(("routing", alias), "is a model's name"))
        if split_mode(alias)[1] is not None:
            raise ConfigError(where.fault(("routing", alias), "must not end in one of its words"))
        for name in policy.models():
            if name not in names and not registry:
                raise ConfigError(where.fault(("routing", alias), f"there is no model `{name}`"))


class _Lines:
    """Finds the line of a value in the file, for error messages."""

    def __init__(self, name: str, root: yaml.Node | None) -> None:
        self._name = name
        self._root = root

    def refuse_duplicates(self) -> None:
        """YAML takes the last of two equal keys without a word.

        Raises:
            ConfigError: a mapping has a key twice.
        """
        todo: list[tuple[tuple[Any, ...], yaml.Node | None]] = [((), self._root)]
        seen_nodes: set[int] = set()
        while todo:
            path, node = todo.pop()
            if id(node) in seen_nodes:  # an alias
                continue
            seen_nodes.add(id(node))
            names: set[Any] = set()
            for name, child, line in _children(node):
                here = (*path, name)
                if name in names:
                    dotted = ".".join(map(str, here))
                    raise ConfigError(f"{self._name}:{line}: {dotted}: defined twice")
                names.add(name)
                todo.append((here, child))

    def fault(self, path: tuple[Any, ...], message: str) -> str:
        dotted = ".".join(str(part) for part in path)
        return f"{self._name}:{self._line(path)}: {dotted}: {message}"

    def _line(self, path: tuple[Any, ...]) -> int:
        node, line = self._root, 1
        for part in path:
            found = next((pair for pair in _children(node) if pair[0] == part), None)
            if found is None:
                break
            _, node, line = found
        return line


def _children(node: yaml.Node | None) -> Iterator[tuple[Any, yaml.Node, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key.value, value, key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield index, value, value.start_mark.line + 1


def _faults(error: ValidationError, where: _Lines) -> list[str]:
    faults = []
    for item in error.errors(include_url=False, include_input=False):
        # a discriminated union puts its tag into the path, which the file doesn't have
        path = tuple(
            part
            for position, part in enumerate(item["loc"])
            if not (position == 2 and item["loc"][0] == "providers" and part in _KINDS)
        )
        message = item["msg"]
        if item["type"] == "extra_forbidden":
            message = "unknown field"
        faults.append(where.fault(path, message.removeprefix("Value error, ")))
    return faults


_KINDS = ("openai", "anthropic", "vllm", "simulator")


def _yaml_fault(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return f"line {mark.line + 1}: {problem}" if mark is not None else problem
