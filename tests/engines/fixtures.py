"""Session fixtures: each engine starts when the first test asks for it, and serves them all.

A test that needs an engine of its own (to crash it, to fill it) makes one from `vllm_python`,
`tiny_model` and `engine_logs`, or from `katan_python` and `engine_logs`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.engines.katan import KatanEngine
from tests.engines.vllm_engine import VllmEngine

ROOT = Path(__file__).resolve().parents[2]
VLLM_PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
KATAN_PYTHON = ROOT / ".venv-katan" / "bin" / "python"
TINY_MODEL = ROOT / ".cache" / "tiny-model"


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """Interpreter of the environment that vLLM is installed in."""
    return _installed(VLLM_PYTHON)


@pytest.fixture(scope="session")
def katan_python() -> Path:
    """Interpreter of the environment that llm-katan is installed in."""
    return _installed(KATAN_PYTHON)


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """Directory of the tiny model."""
    return _installed(TINY_MODEL)


@pytest.fixture(scope="session")
def engine_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory that the engines log to."""
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="session")
def vllm_engines(
    vllm_python: Path, tiny_model: Path, engine_logs: Path
) -> Iterator[tuple[VllmEngine, VllmEngine]]:
    """A real vLLM that generates and one that embeds.

    They start together: each takes a core for a third of a minute, to import what it has.
    """
    generate = VllmEngine(vllm_python, tiny_model, log=engine_logs / "vllm.log")
    embed = VllmEngine(vllm_python, tiny_model, log=engine_logs / "vllm-embed.log", task="embed")
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        list(pool.map(stack.enter_context, (generate, embed)))
        yield generate, embed


@pytest.fixture(scope="session")
def vllm_engine(vllm_engines: tuple[VllmEngine, VllmEngine]) -> VllmEngine:
    """The real vLLM that generates."""
    return vllm_engines[0]


@pytest.fixture(scope="session")
def vllm_embed_engine(vllm_engines: tuple[VllmEngine, VllmEngine]) -> VllmEngine:
    """The real vLLM that embeds."""
    return vllm_engines[1]


@pytest.fixture(scope="session")
def katan(katan_python: Path, engine_logs: Path) -> Iterator[KatanEngine]:
    """An llm-katan that answers in OpenAI's and Anthropic's format."""
    with KatanEngine(katan_python, log=engine_logs / "katan.log") as engine:
        yield engine


def _installed(path: Path) -> Path:
    if path.exists():
        return path
    missing = f"{path.relative_to(ROOT)} is missing: run tests/engines/install.sh"
    # In CI a skipped engine would pass for a tested one.
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)
