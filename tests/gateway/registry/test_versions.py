"""What may be registered."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from sluice.backends.worker.model import read_model
from sluice.gateway.registry.versions import NewVersion
from tests.gateway.registry.samples import SUM, body, registered


def read(**changes: Any) -> NewVersion:
    return msgspec.json.decode(json.dumps(body(**changes)), type=NewVersion)


def test_what_is_not_said_has_a_default() -> None:
    version = read()
    assert version.tiers == ("interactive", "batch")
    assert version.price is None
    assert (version.parallelism.tensor, version.parallelism.pipeline) == (1, 1)
    assert version.engine.prefix_caching
    assert version.sampling.pairs() == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a/b"},
        {"name": ""},
        {"name": "a\n"},
        {"version": "prod"},
        {"version": "canary"},
        {"manifest": {}},
        {"manifest": {"../up": {"sha256": SUM, "size": 1}}},
        {"manifest": {"/etc/passwd": {"sha256": SUM, "size": 1}}},
        {"manifest": {"a//b": {"sha256": SUM, "size": 1}}},
        {"manifest": {"a": {"sha256": SUM.upper() + "A", "size": 1}}},
        {"manifest": {"a": {"sha256": SUM, "size": -1}}},
        {"context_length": 0},
        {"capabilities": []},
        {"capabilities": ["singing"]},
        {"tiers": []},
        {"parallelism": {"tensor": 0}},
        {"sampling": {"temperature": 3}},
        {"sampling": {"tempreature": 1}},
        {"price": {"input_per_mtok": "-1"}},
        {"price": {"input_per_mtok": "0.0000000001"}},
        {"price": {}},
        {"default_max_tokens": 9000},
        {"stage": "prod"},
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        read(**wrong)


def test_prices_are_exact() -> None:
    price = read(price={"input_per_mtok": "0.1", "output_per_mtok": "0.000000001"}).price
    assert price is not None
    assert price.price().input == 100_000_000
    assert price.price().cached_input == 100_000_000
    assert price.price().output == 1
    assert msgspec.to_builtins(price)["input_per_mtok"] == "0.1"


def test_a_worker_reads_what_the_registry_answers() -> None:
    version = registered(
        stage="canary",
        share=5.0,
        parallelism={"tensor": 2},
        engine={"max_num_seqs": 64, "max_queued_tokens": 100_000},
        price={"input_per_mtok": "1"},
    )
    served = read_model(msgspec.json.encode(version))
    assert (served.name, served.version, served.pool) == ("llama", "1", "pool")
    assert served.stage == "canary"
    assert served.manifest == version.manifest
    assert served.parallelism == version.parallelism
    assert served.engine == version.engine
