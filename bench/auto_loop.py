"""Whether the loop pays: benchmark prompts through a gateway, with outcomes fed back by its API.

    python -m bench.auto_loop --data DIR [--prompts 2000] [--sources a,b] [--share 0.5]

DIR (by default ROUTING_DATA of the environment) holds prompts with the outcomes of a strong and a
weak model, a JSON line each in `<source>.jsonl.gz`: `prompt`, `fold` (0 or 1), `strong_correct` and
`weak_correct` or `strong_score` and `weak_score`. It stays outside the repository.

Everything goes by the public interface of `sluice up`:

1. The prompts of fold 1 go to `auto`, which the rule scores, and whose strong tier has the share.
2. The prompts of fold 0 go to `auto:economy` and to `auto:quality`, and what came of each answer is
   fed back. The gateway trains by itself, and promotes what beats the rule.
3. Its report promises at which share the model reaches the quality that the rule had in 1, and so
   what that quality costs. The strong tier gets that share, and the prompts of fold 1 go to `auto`
   again. Nobody has told the gateway what came of those.

The promise is kept if the quality that the rule had costs less, each of promise and measurement
lies within the other's interval, and what was measured at the new share is not surely worse. The
usage report must show the saving against sending everything to the strong model.
"""

import argparse
import asyncio
import gzip
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web

from bench.auto_upstream import STRONG, WEAK, upstream
from bench.errors import BenchError
from bench.machine import free_port

_ADMIN_KEY = "sk-bench-admin-0123456789abcdef0123456789"
_PRICES = {WEAK: 1, STRONG: 10}  # USD per million tokens
#: What published routers are compared on.
_SOURCES = ("routellm_mmlu", "routellm_gsm8k")
_TOKENS = 200  # of each request, prompt and answer
_AT_A_TIME = 8
_DRAWS = 1000


@dataclass(frozen=True)
class Prompt:
    """A prompt with what came of it at each model."""

    text: str
    fold: int
    outcomes: Mapping[str, float]


@dataclass(frozen=True)
class Pass:
    """The prompts as `auto` answered them, in their order.

    Attributes:
        strong: whether the strong model answered.
        quality: the outcome of the answer.
        scores: as `x-route-reason` tells them.
        usage: the team's usage report.
    """

    strong: np.ndarray[Any, np.dtype[np.bool_]]
    quality: np.ndarray[Any, np.dtype[np.float64]]
    scores: np.ndarray[Any, np.dtype[np.float64]]
    usage: dict[str, Any]


def load(directory: Path, sources: Sequence[str], count: int) -> list[Prompt]:
    """As many prompts of each fold, mixed, of all sources in equal parts as far as they go."""
    found: dict[str, Prompt] = {}
    for fold in (0, 1):
        left = [_shuffled(directory / f"{source}.jsonl.gz", fold) for source in sources]
        room = count
        while room and any(left):
            for rows in left:
                if rows and room and (prompt := rows.pop()).text not in found:
                    found[prompt.text] = prompt
                    room -= 1
    prompts = list(found.values())
    random.Random(0).shuffle(prompts)
    return prompts


def _shuffled(file: Path, fold: int) -> list[Prompt]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = [row for line in lines if (row := json.loads(line))["fold"] == fold]
    random.Random(0).shuffle(rows)
    return [_prompt(row) for row in rows]


def _prompt(row: Mapping[str, Any]) -> Prompt:
    kind = "correct" if "strong_correct" in row else "score"
    outcomes = {STRONG: float(row[f"strong_{kind}"]), WEAK: float(row[f"weak_{kind}"])}
    return Prompt(row["prompt"], row["fold"], outcomes)


class Gateway:
    """`sluice up`, as its callers and its administrator see it."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def call(
        self, method: str, path: str, body: Any = None, key: str = _ADMIN_KEY
    ) -> tuple[Any, Mapping[str, str]]:
        """A call that must succeed: the answer's JSON, and its headers."""
        headers = {"authorization": f"Bearer {key}"}
        async with self._session.request(
            method, self._url + path, json=body, headers=headers
        ) as response:
            text = await response.read()
            if response.status >= 300:
                raise BenchError(f"{method} {path}: {response.status} {text[:500]!r}")
            return json.loads(text), response.headers

    async def team(self, name: str) -> str:
        """A new team's key."""
        await self.call("POST", "/admin/teams", {"name": name})
        made, _ = await self.call("POST", f"/admin/teams/{name}/keys", {})
        key: str = made["key"]
        await self.until(lambda: self._known(key), "the key is known")
        return key

    async def ask(
        self, prompt: Prompt, key: str, model: str = "auto"
    ) -> tuple[float, Mapping[str, str]]:
        """The outcome of an answer, and its headers."""
        body = {"model": model, "messages": [{"role": "user", "content": prompt.text}]}
        answer, headers = await self.call(
            "POST", "/v1/chat/completions", {**body, "max_tokens": 500}, key
        )
        return float(answer["choices"][0]["message"]["content"]), headers

    async def until(self, probe: Any, what: str, seconds: float = 300) -> Any:
        """What a probe gives, once it gives anything."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := await probe():
                return found
            await asyncio.sleep(0.2)
        raise BenchError(f"not within {seconds:g} s: {what}")

    async def _known(self, key: str) -> bool:
        try:
            await self.call("GET", "/v1/models", key=key)
        except BenchError:
            return False
        return True


async def each(prompts: Sequence[Prompt], work: Any) -> list[Any]:
    """What some work gives for each prompt, several at a time."""
    gate = asyncio.Semaphore(_AT_A_TIME)

    async def one(prompt: Prompt) -> Any:
        async with gate:
            return await work(prompt)

    return await asyncio.gather(*(one(prompt) for prompt in prompts))


async def ask_all(gateway: Gateway, prompts: Sequence[Prompt], team: str) -> Pass:
    """Put prompts to `auto`, for a team of its own."""
    key = await gateway.team(team)
    answers = await each(prompts, lambda prompt: gateway.ask(prompt, key))

    async def settled() -> Any:
        usage, _ = await gateway.call("GET", "/v1/usage", key=key)
        return usage if usage["requests"] == len(prompts) else None

    headers = [given for _, given in answers]
    reasons = [
        dict(p.partition("=")[::2] for p in h["x-route-reason"].split("; ")) for h in headers
    ]
    return Pass(
        np.array([given["x-model-used"] == STRONG for given in headers]),
        np.array([outcome for outcome, _ in answers]),
        np.array([float(reason["score"]) for reason in reasons]),
        await gateway.until(settled, "all usage is recorded"),
    )


async def teach(gateway: Gateway, prompts: Sequence[Prompt]) -> None:
    """Put prompts to both tiers, and say what came of it."""
    key = await gateway.team("teacher")

    async def one(prompt: Prompt) -> None:
        for word in ("economy", "quality"):
            outcome, headers = await gateway.ask(prompt, key, f"auto:{word}")
            said = {"request_id": headers["x-request-id"], "score": outcome, "source": "bench"}
            await gateway.call("POST", "/v1/feedback", said, key)

    await each(prompts, one)


async def learnt(gateway: Gateway) -> dict[str, Any]:
    """The report of the model that was promoted."""

    async def active() -> Any:
        page, _ = await gateway.call("GET", "/admin/routing/auto/models")
        for model in page["data"]:
            if model["state"] == "active":
                return model["report"]
            gain = (model["report"].get("against_present") or {}).get("gain")
            raise BenchError(f"the candidate was not promoted: it gains {gain}")
        return None

    report: dict[str, Any] = await gateway.until(active, "a model is promoted")
    return report


def share_for(curve: Mapping[str, Any], quality: float, figure: str = "value") -> float:
    """The least share at which a report's curve reaches a quality."""
    shares = np.array([point["share"] for point in curve["points"]])
    reached = np.maximum.accumulate([point["quality"][figure] for point in curve["points"]])
    return float(np.interp(quality, reached, shares))


def cost_of(share: float) -> float:
    """USD per million tokens at a share of strong calls."""
    return _PRICES[WEAK] + share * (_PRICES[STRONG] - _PRICES[WEAK])


def savings(
    prompts: Sequence[Prompt], before: Pass, after: Pass
) -> tuple[float, np.ndarray[Any, Any]]:
    """By how much the quality that the rule had becomes cheaper if the strong model gets the
    prompts that the model scores highest, and as few as will do; and the same of other draws of
    these prompts."""
    weak = np.array([each.outcomes[WEAK] for each in prompts])
    gain = np.array([each.outcomes[STRONG] for each in prompts]) - weak

    def of(drawn: np.ndarray[Any, Any]) -> float:
        order = drawn[np.argsort(-after.scores[drawn], kind="stable")]
        reached = weak[drawn].mean() + np.append(0.0, np.cumsum(gain[order])) / len(drawn)
        share = np.argmax(reached >= before.quality[drawn].mean() - 1e-12) / len(drawn)
        return float(1 - cost_of(share) / cost_of(before.strong[drawn].mean()))

    everyone = np.arange(len(prompts))
    draws = np.random.default_rng(0).integers(0, len(prompts), (_DRAWS, len(prompts)))
    return of(everyone), np.array([of(drawn) for drawn in draws])


def judge(prompts: Sequence[Prompt], before: Pass, after: Pass, promise: Mapping[str, Any]) -> bool:
    """Say what was found; whether the promise was kept."""
    saving, drawn = savings(prompts, before, after)
    ends = np.percentile(drawn, (2.5, 97.5))
    first, low, high = promise["saving"]
    worse = after.quality - before.quality
    draws = np.random.default_rng(0).integers(0, len(prompts), (_DRAWS, len(prompts)))
    quality = np.percentile(worse[draws].mean(1), (2.5, 97.5))
    paid = 1 - after.usage["cost_usd"] / before.usage["cost_usd"]
    strong_only = sum(part["strong_cost_usd"] for part in after.usage["routing"])
    saved = after.usage["saved_usd"]
    expected = len(prompts) * _TOKENS / 1e6 * _PRICES[STRONG] - after.usage["cost_usd"]
    print(
        f"by the rule:   {before.strong.mean():.1%} strong calls,"
        f" quality {before.quality.mean():.4f}\n"
        f"by the model:  {after.strong.mean():.1%} strong calls,"
        f" quality {after.quality.mean():.4f} ({worse.mean():+.4f},"
        f" 95 % [{quality[0]:+.4f}, {quality[1]:+.4f}]), {paid:.1%} cheaper\n"
        f"at the rule's quality: {saving:.1%} cheaper (95 % [{ends[0]:.1%}, {ends[1]:.1%}]);"
        f" promised {first:.1%} [{low:.1%}, {high:.1%}]\n"
        f"usage report:  {saved:.4f} USD saved of the {strong_only:.4f} of the strong model alone;"
        f" reckoned here {expected:.4f}"
    )
    kept = low <= saving <= high and ends[0] <= first <= ends[1] and quality[1] >= 0 < saving
    return bool(kept and abs(saved - expected) < 1e-6)


def promised(report: Mapping[str, Any], share: float) -> dict[str, Any]:
    """What a report promises to whoever has the rule at a share: the new share, and by how much the
    same quality becomes cheaper, with the ends of its interval."""
    against = report["against_present"]
    points = against["present"]["points"]
    quality = float(
        np.interp(share, [p["share"] for p in points], [p["quality"]["value"] for p in points])
    )
    shares = [
        share_for(against["candidate"], quality, figure) for figure in ("value", "low", "high")
    ]
    saving = [1 - cost_of(each) / cost_of(share) for each in shares]
    return {"share": shares[0], "saving": saving}


@asynccontextmanager
async def served(prompts: Sequence[Prompt], share: float, pairs: int, home: Path) -> Any:
    """A gateway before the upstream; gives its client."""
    runner = web.AppRunner(upstream({each.text: each.outcomes for each in prompts}))
    await runner.setup()
    upstream_port, port = free_port(), free_port()
    await web.TCPSite(runner, "127.0.0.1", upstream_port).start()
    file = home / "sluice.json"
    file.write_text(json.dumps(_config(upstream_port, share, pairs)))
    command = [str(Path(sys.executable).parent / "sluice"), "up", "--config", str(file)]
    command += ["--port", str(port), "--data-dir", str(home / "data")]
    with (home / "sluice.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**os.environ, "SLUICE_ADMIN_KEY": _ADMIN_KEY},
            stdout=log,
            stderr=log,
        )
    try:
        async with aiohttp.ClientSession() as session:
            gateway = Gateway(session, f"http://127.0.0.1:{port}")
            await gateway.until(lambda: _answers(session, port), "the gateway answers", 120)
            yield gateway
    finally:
        process.terminate()
        await process.wait()
        await runner.cleanup()


async def _answers(session: aiohttp.ClientSession, port: int) -> bool:
    try:
        async with session.get(f"http://127.0.0.1:{port}/health/live") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


def _config(upstream_port: int, share: float, pairs: int) -> dict[str, Any]:
    def model(name: str) -> dict[str, Any]:
        price = str(_PRICES[name])
        return {
            "name": name,
            "context_length": 100_000,
            "capabilities": ["chat"],
            "price": {"input_per_mtok": price, "output_per_mtok": price},
            "deployments": [{"provider": "bench", "model": name}],
        }

    url = f"http://127.0.0.1:{upstream_port}/v1"
    return {
        "providers": {"bench": {"kind": "openai", "base_url": url, "api_key": "none"}},
        "models": [model(WEAK), model(STRONG)],
        "routing": {"auto": policy(share)},
        "learning": {"retraining": {"labels": pairs}},
    }


def policy(share: float) -> dict[str, Any]:
    """Two tiers; a prompt is asked once, so that conversations are none."""
    tiers: list[dict[str, Any]] = [
        {"name": "economy", "models": {WEAK: 1}},
        {"name": "quality", "models": {STRONG: 1}, "share": share},
    ]
    return {"tiers": tiers, "sticky": False}


async def run(prompts: Sequence[Prompt], share: float, home: Path) -> bool:
    """All of it; whether the promise was kept."""
    taught = [each for each in prompts if each.fold == 0]
    tried = [each for each in prompts if each.fold == 1]
    async with served(prompts, share, len(taught) - 5, home) as gateway:
        before = await ask_all(gateway, tried, "before")
        await teach(gateway, taught)
        promise = promised(await learnt(gateway), float(before.strong.mean()))
        print(f"{len(taught)} prompts taught; promised share: {promise['share']:.3f}")
        await gateway.call("PUT", "/admin/routing/auto", {"auto": policy(promise["share"])})
        await asyncio.sleep(2)  # twice what any process may take to follow
        after = await ask_all(gateway, tried, "after")
    return judge(tried, before, after, promise)


def main() -> None:
    """Run it, and say whether the promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m bench.auto_loop", description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("ROUTING_DATA"))
    parser.add_argument("--prompts", type=int, default=2000, help="of each fold (2000)")
    parser.add_argument("--sources", default=",".join(_SOURCES), help="comma-separated")
    parser.add_argument("--share", type=float, default=0.5, help="of strong calls, at first (0.5)")
    args = parser.parse_args()
    if args.data is None:
        parser.error("give --data, or set ROUTING_DATA")
    prompts = load(args.data, args.sources.split(","), args.prompts)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as home:
        Path(home).chmod(0o711)  # Postgres runs as a user of its own under root
        kept = asyncio.run(run(prompts, args.share, Path(home)))
    print("kept" if kept else "NOT KEPT")
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
