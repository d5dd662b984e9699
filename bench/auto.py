"""What `auto` costs: `python -m bench.auto`.

A gateway is loaded in short blocks, by a model's name and by `auto` in turn. What is compared is
the gateway's own processor time a request, pair by pair: it is what bounds throughput, and other
programs on the machine change it little.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from bench import answers, machine, wrk
from bench.process import Server
from bench.sluice import BY_AUTO, BY_NAME, SluiceAuto

_CONNECTIONS = 64


def _block(subject: SluiceAuto, endpoint: wrk.Endpoint, streamed: bool, seconds: int) -> float:
    """Microseconds of processor time a request, over one block of load."""
    ask = answers.ask_streamed if streamed else answers.ask
    before = subject.cpu_seconds()
    load = wrk.run(endpoint, ask(endpoint.model), _CONNECTIONS, seconds)
    if not load.requests:  # a machine that is busy with other things: once more
        return _block(subject, endpoint, streamed, seconds)
    if (error := load.error()) is not None:
        raise SystemExit(error)
    return (subject.cpu_seconds() - before) * 1e6 / load.requests


def _compare(
    subject: SluiceAuto, lanes: dict[str, wrk.Endpoint], streamed: bool, pairs: int, seconds: int
) -> str:
    for endpoint in lanes.values():  # to get warm
        _block(subject, endpoint, streamed, seconds)
    costs: dict[str, list[float]] = {label: [] for label in lanes}
    for turn in range(pairs):
        for label in sorted(lanes, reverse=turn % 2 == 1):
            costs[label].append(_block(subject, lanes[label], streamed, seconds))
    ratios = [auto / named for auto, named in zip(costs[BY_AUTO], costs[BY_NAME], strict=True)]
    middle = statistics.median(ratios) - 1
    error = statistics.stdev(ratios) / len(ratios) ** 0.5
    return (
        f"{'streams' if streamed else 'requests'}: by name"
        f" {statistics.median(costs[BY_NAME]):.1f} us, auto {statistics.median(costs[BY_AUTO]):.1f}"
        f" us; auto costs {middle:+.1%} (mean {statistics.mean(ratios) - 1:+.1%}, standard error"
        f" {error:.1%}, {pairs} pairs)"
    )


def main() -> None:
    """Measure, and print one line for whole answers and one for streams."""
    parser = argparse.ArgumentParser(prog="python -m bench.auto", description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=2, help="length of a block")
    args = parser.parse_args()
    wrk.ensure_installed()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-logs-") as scratch:
        logs, port = Path(scratch), machine.free_port()
        command = [sys.executable, "-m", "bench.mock_upstream", "--port", str(port)]
        mock = Server("mock", command, log=logs / "mock.log", core=machine.OTHER_CORE)
        subject = SluiceAuto(str(Path(sys.executable).parent / "sluice"), logs)
        try:
            mock.wait_until_answering(f"http://127.0.0.1:{port}/health")
            lanes = {
                lane.label: lane.endpoint for lane in subject.start(f"http://127.0.0.1:{port}")
            }
            for streamed in (False, True):
                print(_compare(subject, lanes, streamed, args.pairs, args.seconds), flush=True)
        finally:
            subject.stop()
            subject.close()
            mock.stop()


if __name__ == "__main__":
    main()
