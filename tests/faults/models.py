"""The configurations of the drills' gateways."""

from __future__ import annotations

from typing import Any

from tests.harness.fixtures import model
from tests.harness.gateway import free_port
from tests.harness.upstream import Upstream

KINDS = ("openai", "vllm", "anthropic")

#: Upstream calls that one request may cost.
BUDGET = 3

FIRST_TOKEN_SECONDS = 1.5
TOTAL_SECONDS = 4.0
_TIMEOUTS = {
    "connect": 1,
    "first_token": FIRST_TOKEN_SECONDS,
    "between_tokens": 1,
    "total": TOTAL_SECONDS,
}

#: Of the touchy gateway: longer than any wait inside a request, so that an open breaker shows.
OPEN_SECONDS = 2.5
MIN_CALLS = 4
MAX_COOLDOWN_SECONDS = 300

#: Models of the touchy gateway, one or several for each of its drills.
SINGLE = (
    *("one-failure", "opens", "probe-closes", "probe-fails", "callers-faults", "leavers"),
    *("limited-no-breaker", "longer-later", "shorter-later", "overloaded", "broken-streams"),
    *("not-asked-twice", "recovers-in-time"),
)
PAIRS = ("first-limited", "both-limited", "one-broken")
FORMS = ("seconds", "fraction", "millis", "date", "long", "absurd", "past", "garbage", "negative")
CHEAP = {"input_per_mtok": "1", "output_per_mtok": "2"}


def provider(kind: str, base: str, **more: Any) -> dict[str, Any]:
    """A provider's configuration over a server of its kind."""
    where: dict[str, Any] = {"base_url": f"{base}/v1"} if kind != "vllm" else {"replicas": [base]}
    if kind == "anthropic":
        where = {"base_url": base}
    return {"kind": kind, **where, **more}


def steady(upstream: Upstream) -> dict[str, Any]:
    """A model of each kind over the scripted upstream, `…-refused` over a closed port."""
    base, dead = upstream.url.removesuffix("/v1"), f"http://127.0.0.1:{free_port()}"
    providers, models = {}, []
    for kind in KINDS:
        for name, url in ((kind, base), (f"{kind}-refused", dead)):
            providers[name] = provider(kind, url, timeouts=_TIMEOUTS)
            models.append(model(name, {"provider": name, "model": "backend-model"}))
    return {
        "providers": providers,
        "models": models,
        "dispatch": {
            "attempts": BUDGET,
            "breaker": {"min_calls": 1_000_000, "max_cooldown_seconds": 1e-9},
        },
        "server": {"drain_seconds": 5},
    }


def touchy(upstream: Upstream) -> dict[str, Any]:
    """See `SINGLE`, `PAIRS` and `FORMS`, and below for fallbacks and credentials."""
    base = upstream.url.removesuffix("/v1")
    providers = {kind: provider(kind, base, timeouts=_TIMEOUTS) for kind in KINDS}
    providers |= {
        f"keyed-{name}": provider("openai", base, api_keys=[f"KEY-ONE-{name}", f"KEY-TWO-{name}"])
        for name in ("limited", "refused", "all-limited", "all-refused", "per-model")
    }
    models = [_single(name) for name in (*SINGLE, *(f"form-{form}" for form in FORMS))]
    models += [model(name, *(_deployment("openai", f"{name}-{n}", w) for n, w in _UNEVEN))
               for name in PAIRS]  # fmt: skip
    models += [
        model(name, _deployment(f"keyed-{name}", name))
        for name in ("limited", "refused", "all-limited", "all-refused", "per-model")
    ]
    models.append(model("per-model-other", _deployment("keyed-per-model", "per-model-other")))
    models.append(_single("spare", price=CHEAP))
    for kind in KINDS:
        models += [
            _single(f"falls-{kind}", kind, fallbacks=["spare"]),
            _single(f"stays-{kind}", kind, fallbacks=["spare"]),
            _single(f"long-{kind}", kind, context_fallbacks=["spare"]),
            _single(f"moderated-{kind}", kind, content_fallbacks=["spare"]),
            _single(f"bare-{kind}", kind),
        ]
    return {
        "providers": providers,
        "models": models,
        "dispatch": {
            "attempts": BUDGET,
            "breaker": {
                "window_seconds": 30,
                "min_calls": MIN_CALLS,
                "failure_ratio": 0.5,
                "open_seconds": OPEN_SECONDS,
                "max_cooldown_seconds": MAX_COOLDOWN_SECONDS,
            },
        },
        "server": {"drain_seconds": 5},
    }


#: The first is practically always drawn first.
_UNEVEN = (("first", 1_000_000), ("second", 1))


def _deployment(provider_name: str, name: str, weight: int = 100) -> dict[str, Any]:
    return {"provider": provider_name, "model": f"at-{name}", "weight": weight}


def _single(name: str, kind: str = "openai", **more: Any) -> dict[str, Any]:
    return model(name, _deployment(kind, name), **more)
