"""What the scorer of `auto` is worth and costs: `python -m bench.routing --data DIR`.

The data is not part of the repository: a directory with one `SOURCE.jsonl.gz` a source, each row
a prompt with a strong and a weak model's outcome, and an `evaluate.py` whose `load`, `metrics`
and `bootstrap` give all figures. Models are fitted by the product's own code, from half of the
prompts, and scored on the other half, both ways. Writes `routing.md`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from sluice.router.complexity.features import extract
from sluice.router.complexity.scorer import Scorer
from sluice.router.complexity.view import RequestView
from sluice.router.training.fit import train
from sluice.router.training.rows import Row

Floats = npt.NDArray[np.float64]

_OUT = Path(__file__).resolve().parent / "routing.md"
_MIX = "mix_correctness"
_UNTRAINED = (
    "routellm_mmlu",
    "routellm_gsm8k",
    "routellm_mtbench",
    "alpacaeval_mixtral",
    "routerarena_sub10",
    _MIX,
)
_TRAINED = ("routellm_mmlu", "routellm_gsm8k", "mmlupro_llama31", "llmrouter_ulab", _MIX)
#: The sources that weights and settings were chosen on; figures on them are flattered.
_TUNED = ("mmlupro_llama31", "llmrouter_ulab")
_FEW = 350
#: Times that each prompt is scored.
_ROUNDS = 10
#: Characters. Of the last two the ends are read only.
_SIZES = (1_000, 20_000, 45_000, 200_000, 2_000_000)
#: Messages whose content is in parts, and the characters of each.
_PARTS = (50, 1_000, 20_000)
_PART = 12
#: Turns of a conversation, and how long each of them is.
_TURNS = (21, 201)
_TURN = 2_000


@dataclass(frozen=True)
class Source:
    """One source of labelled prompts.

    Attributes:
        name: of it.
        rows: for training; a mix's sources weigh the same.
        strong: outcomes.
        weak: outcomes.
        weights: of the rows in the figures.
        folds: which half each row is in.
    """

    name: str
    rows: list[Row]
    strong: Floats
    weak: Floats
    weights: Floats
    folds: npt.NDArray[np.int64]

    def scores(self, scorer: Scorer) -> Floats:
        """A scorer's, of all rows."""
        return np.array([scorer.score_features(row.features) for row in self.rows])


class Bench:
    """The measurements."""

    def __init__(self, evaluate: ModuleType, draws: int) -> None:
        """Args:
        evaluate: the data's own program.
        draws: of the bootstrap.
        """
        self._evaluate = evaluate
        self._draws = draws

    def load(self, name: str) -> Source:
        """A source, or the mix."""
        found: list[dict[str, Any]] = self._evaluate.load(name)
        top = max(row["strong"] for row in found)
        scale = 10.0 if top > 1 else 1.0  # MT-Bench's judge gives 1 to 10
        rows = [
            Row(
                extract(RequestView.of_prompt(row["prompt"])),
                row["strong"] / scale,
                row["weak"] / scale,
                row["weight"],
            )
            for row in found
        ]
        strong, weak, weights = self._evaluate.arrays(found)
        return Source(name, rows, strong, weak, weights, np.array([r["fold"] for r in found]))

    def figures(self, source: Source, scores: Floats) -> str:
        """APGR with its interval, and CPT, as cells of a table."""
        found = self._evaluate.metrics(scores, source.strong, source.weak, source.weights)
        low, high = self.interval(source, scores)
        cells = f"{found['apgr']:.3f} [{low:.3f}, {high:.3f}]"
        return f"{cells} | {found['cpt50']:.1f} / {found['cpt80']:.1f}"

    def apgr(self, source: Source, scores: Floats) -> float:
        """The area under the curve."""
        found = self._evaluate.metrics(scores, source.strong, source.weak, source.weights)
        return float(found["apgr"])

    def interval(self, source: Source, scores: Floats) -> tuple[float, float]:
        """95 % of the APGR when prompts are drawn again, the scorer as it is."""
        weights = source.weights if source.name == _MIX else None
        low, high = self._evaluate.bootstrap(
            scores, source.strong, source.weak, weights, self._draws
        )
        return low, high


def two_fold(source: Source, choose: Callable[[int], list[Row]]) -> Floats:
    """Benefits by models of the other half.

    Args:
        source: of the prompts.
        choose: the rows to fit on when a half is scored.
    """
    benefits = np.empty(len(source.rows))
    for half in (0, 1):
        scorer = Scorer.of_model(train(choose(half)).model)
        for at in np.nonzero(source.folds == half)[0]:
            benefits[at] = scorer.benefit(source.rows[at].features)
    return benefits


def placed(source: Source, benefits: Floats) -> Floats:
    """The place of each prompt among those of its half, 0 to 1.

    The halves have models of their own, and a model's thresholds are taken from the scores that
    it gave itself: a share of strong calls is that share of each half. Benefits of two models
    differ in their mean by the labels that each happened to see, which no threshold notices.
    """
    places = np.empty(len(benefits))
    for half in (0, 1):
        there = np.nonzero(source.folds == half)[0]
        values, at = np.unique(benefits[there], return_inverse=True)
        mass = np.bincount(at, weights=source.weights[there], minlength=len(values))
        places[there] = ((np.cumsum(mass) - mass / 2) / mass.sum())[at]
    return places


def other_half(source: Source) -> Callable[[int], list[Row]]:
    """All rows of the other half."""

    def choose(half: int) -> list[Row]:
        return [row for row, at in zip(source.rows, source.folds, strict=True) if at != half]

    return choose


def few(source: Source, seed: int) -> Callable[[int], list[Row]]:
    """`_FEW` rows of the other half, drawn by weight: each source brings about as many."""

    def choose(half: int) -> list[Row]:
        random_ = np.random.default_rng([seed, half])
        there = np.nonzero(source.folds != half)[0]
        weights = source.weights[there] / source.weights[there].sum()
        drawn = random_.choice(there, _FEW, replace=False, p=weights)
        return [
            Row(source.rows[i].features, source.rows[i].strong, source.rows[i].weak) for i in drawn
        ]

    return choose


def quality(bench: Bench, few_draws: int) -> Iterator[str]:
    """The tables of figures, line by line."""
    yield "## Untrained: the rule"
    yield ""
    yield "| source | APGR [95 %] | CPT50 / CPT80 |"
    yield "|---|---|---|"
    for name in _UNTRAINED:
        source = bench.load(name)
        yield f"| {name} | {bench.figures(source, source.scores(Scorer()))} |"
    yield ""
    yield "## Trained on one half, scored on the other, both ways"
    yield ""
    yield "Each half has thresholds of its own, as each model has. In the last column there is one"
    yield "for both, in units of the expected benefit."
    yield ""
    yield "| source | prompts | APGR [95 %] | CPT50 / CPT80 | APGR, one threshold |"
    yield "|---|---|---|---|---|"
    for name in _TRAINED:
        source = bench.load(name)
        mark = " (tuned on)" if name in _TUNED else ""
        benefits = two_fold(source, other_half(source))
        figures = bench.figures(source, placed(source, benefits))
        pooled = bench.apgr(source, benefits)
        yield f"| {name}{mark} | {len(source.rows)} | {figures} | {pooled:.3f} |"
    mix = bench.load(_MIX)
    by_benefit = [two_fold(mix, few(mix, seed)) for seed in range(few_draws)]
    one_threshold = np.mean([bench.apgr(mix, benefits) for benefits in by_benefit])
    drawn = [placed(mix, benefits) for benefits in by_benefit]
    found = [bench.apgr(mix, scores) for scores in drawn]
    bounds = np.mean([bench.interval(mix, scores) for scores in drawn], axis=0)
    yield ""
    yield (
        f"{_MIX} from {_FEW} labels, {few_draws} draws of them: APGR {np.mean(found):.3f}, "
        f"95 % by prompts [{bounds[0]:.3f}, {bounds[1]:.3f}], between draws "
        f"{min(found):.3f} to {max(found):.3f}; with one threshold {one_threshold:.3f}."
    )


def cost(bench: Bench, evaluate: ModuleType) -> Iterator[str]:
    """The table of times: reading a request's members, and scoring it by a trained model."""
    source = bench.load("routellm_gsm8k")
    scorer = Scorer.of_model(train(source.rows).model)
    names = ("routellm_mmlu", "routellm_gsm8k", "alpacaeval_mixtral", "routerarena_sub10")
    prompts = [row["prompt"] for name in names for row in evaluate.load(name)]
    random.Random(0).shuffle(prompts)
    yield "## Cost of scoring one request, ms"
    yield ""
    yield f"Of each prompt the least of {_ROUNDS} runs: the waits for other programs are not in it."
    yield ""
    yield "| prompts | CPU mean of all runs | mean | p99 |"
    yield "|---|---|---|---|"
    yield _timed("of the sources", scorer, map(_asked, prompts[:2000]))
    for size in _SIZES:
        yield _timed(f"{size:,} characters", scorer, map(_asked, _long(prompts, size, 50)))
    # Within JSON they are escaped, and strings are read from quote to quote.
    quoted = [prompt.replace(" ", '" ') for prompt in prompts]
    for size in _SIZES:
        name = f"{size:,} characters, a quote behind each word"
        yield _timed(name, scorer, map(_asked, _long(quoted, size, 50)))
    for parts in _PARTS:
        long = _long(prompts, parts * _PART, 50)
        name = f"{parts:,} parts of {_PART} characters"
        yield _timed(name, scorer, map(_asked, map(_in_parts, long)))
    for turns in _TURNS:
        long = _long(prompts, turns * _TURN, 50)
        name = f"{turns:,} turns of {_TURN:,} characters"
        yield _timed(name, scorer, map(_conversation, long))
        yield _timed(f"an agent after {turns:,} results as long", scorer, map(_agent, long))


def _asked(content: object) -> list[dict[str, Any]]:
    """Messages with one of the user's."""
    return [{"role": "user", "content": content}]


def _in_parts(prompt: str) -> list[dict[str, str]]:
    """A prompt as the content of one message, in many parts."""
    return [{"type": "text", "text": text} for text in _pieces(prompt, _PART)]


def _conversation(prompt: str) -> list[dict[str, Any]]:
    """A prompt as turns of a user and a model."""
    turns = _pieces(prompt, _TURN)
    return [
        {"role": "assistant" if at % 2 else "user", "content": turn}
        for at, turn in enumerate(turns)
    ]


def _agent(prompt: str) -> list[dict[str, Any]]:
    """A prompt as what tools gave a model that was asked once."""
    call = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    messages = _asked("Mend the test that fails now and then, and say why it did.")
    for text in _pieces(prompt, _TURN):
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": "call_1", "content": text})
    return messages


def _pieces(prompt: str, size: int) -> list[str]:
    return [prompt[at : at + size] for at in range(0, len(prompt), size)]


def _long(prompts: Sequence[str], size: int, count: int) -> list[str]:
    """Prompts of other prompts, so many characters long."""
    draw = random.Random(size)
    found = []
    for _ in range(count):
        parts: list[str] = []
        while sum(map(len, parts)) < size:
            parts += draw.choices(prompts, k=max(1, size // 2000))
        found.append("\n".join(parts)[:size])
    return found


def _timed(name: str, scorer: Scorer, prompts: Iterable[list[dict[str, Any]]]) -> str:
    bodies = [{"messages": msgspec.Raw(msgspec.json.encode(messages))} for messages in prompts]
    least = np.full(len(bodies), np.inf)
    begun = time.process_time()
    for _ in range(_ROUNDS):
        for at, body in enumerate(bodies):
            start = time.perf_counter()
            scorer.read(body)
            least[at] = min(least[at], 1e3 * (time.perf_counter() - start))
    mean = 1e3 * (time.process_time() - begun) / (_ROUNDS * len(bodies))
    p99 = np.percentile(least, 99)
    return f"| {name} | {mean:.3f} | {least.mean():.3f} | {p99:.3f} |"


def _evaluate(directory: Path) -> ModuleType:
    """The data's own program."""
    spec = importlib.util.spec_from_file_location("routing_evaluate", directory / "evaluate.py")
    if spec is None or spec.loader is None:
        raise SystemExit(f"{directory} has no evaluate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m bench.routing", description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("ROUTING_DATA"))
    parser.add_argument("--bootstrap", type=int, default=1000, help="draws (1000)")
    parser.add_argument("--few-draws", type=int, default=10, help=f"of {_FEW} labels (10)")
    parser.add_argument("--only", choices=("quality", "cost"))
    parser.add_argument("--out", type=Path, default=_OUT)
    args = parser.parse_args()
    if args.data is None or not (args.data / "evaluate.py").is_file():
        parser.error("--data or ROUTING_DATA must name a directory with evaluate.py")
    evaluate = _evaluate(args.data)
    bench = Bench(evaluate, args.bootstrap)
    lines = ["# The scorer of `auto`", ""]
    if args.only != "cost":
        lines += _told(quality(bench, args.few_draws))
    if args.only != "quality":
        lines += ["", *_told(cost(bench, evaluate))]
    args.out.write_text("\n".join(lines) + "\n")


def _told(lines: Iterator[str]) -> list[str]:
    """The lines, each printed as it comes."""
    kept = []
    for line in lines:
        print(line, flush=True)
        kept.append(line)
    return kept


if __name__ == "__main__":
    main()
