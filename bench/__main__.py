"""The command line: `python -m bench`."""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from bench import machine, report, wrk
from bench.errors import BenchError
from bench.measure import Run, Straight, say
from bench.peers import PEERS, Environment
from bench.process import Server
from bench.sluice import Sluice, SluiceAuto, SluiceLimits, SluicePool
from bench.subject import Subject

_ROOT = Path(__file__).resolve().parent.parent
_ENVIRONMENT = _ROOT / ".venv-bench"
_NAMES = (
    Sluice.name,
    SluiceAuto.name,
    SluiceLimits.name,
    SluicePool.name,
    *(peer.name for peer in PEERS),
)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", help=f"comma-separated: {','.join(_NAMES)}")
    parser.add_argument("--seconds", type=int, default=10, help="length of each load (10)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (3)")
    parser.add_argument("--held", type=int, default=4000, help="held streams, 0 for none (4000)")
    parser.add_argument("--quick", action="store_true", help="one round of 2 s, 500 held streams")
    parser.add_argument("--out", type=Path, default=_ROOT / "bench", help="where results go")
    parser.add_argument("--logs", type=Path, help="where servers log (a temporary directory)")
    parser.add_argument(
        "--sluice",
        default=str(Path(sys.executable).parent / "sluice"),
        help="the sluice program (the one beside this Python)",
    )
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.seconds, args.held = 1, 2, min(args.held, 500)
    chosen = _NAMES if args.only is None else tuple(args.only.split(","))
    if unknown := set(chosen) - set(_NAMES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    args.chosen = chosen
    return args


def _subjects(args: argparse.Namespace, environment: Environment, logs: Path) -> list[Subject]:
    makers: dict[str, Callable[[], Subject]] = {
        Sluice.name: partial(Sluice, args.sluice, logs),
        SluiceAuto.name: partial(SluiceAuto, args.sluice, logs),
        SluiceLimits.name: partial(SluiceLimits, args.sluice, logs),
        SluicePool.name: partial(SluicePool, args.sluice, logs),
        **{peer.name: partial(peer, environment, logs) for peer in PEERS},
    }
    return [Straight(), *(makers[name]() for name in args.chosen)]


def _measure(args: argparse.Namespace, logs: Path) -> list[str]:
    machine.check()
    limit = machine.raise_open_files()
    if args.held * 2 > limit:
        raise BenchError(f"{args.held} held streams need {args.held * 2} open files, not {limit}")
    wrk.ensure_installed()
    environment = Environment(_ENVIRONMENT)
    wanted = [peer.requirement for peer in PEERS if peer.name in args.chosen]
    environment.install(["uvloop", *wanted])
    port = machine.free_port()
    command = [environment.python, "-m", "bench.mock_upstream", "--port", str(port)]
    upstream = f"http://127.0.0.1:{port}"
    started = datetime.now(UTC)
    mock = Server("mock", command, log=logs / "mock.log", core=machine.OTHER_CORE)
    run = Run(_subjects(args, environment, logs), upstream, environment.python)
    try:
        mock.wait_until_answering(f"{upstream}/health")
        run.loads(args.rounds, args.seconds)
        if args.held:
            run.hold(args.held)
    finally:
        run.close()
        mock.stop()
    setting = report.Setting(
        date=started,
        machine=machine.description(),
        wrk=wrk.version(),
        rounds=args.rounds,
        seconds=args.seconds,
        streams=args.held,
    )
    args.out.mkdir(parents=True, exist_ok=True)
    report.write(args.out, setting, run.results)
    print((args.out / "results.md").read_text())
    return run.results.failures


def main() -> int:
    """Run the benchmark; 1 if a figure can't be trusted."""
    args = _arguments()
    # So that a stopped run stops its servers: they are in sessions of their own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="sluice-bench-logs-") as scratch:
        logs = args.logs or Path(scratch)
        logs.mkdir(parents=True, exist_ok=True)
        try:
            failures = _measure(args, logs)
        except BenchError as error:
            say(f"FAILED: {error}")
            return 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
