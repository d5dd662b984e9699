"""The other gateways: how each is installed and started, pinned to its core with one worker."""

import json
import subprocess
import sys
from pathlib import Path

from bench.errors import BenchError
from bench.machine import GATEWAY_CORE, free_port
from bench.process import Server
from bench.subject import Lane, Notes, Subject
from bench.wrk import Endpoint

_KEY = "sk-bench-0123456789abcdef0123456789"


class Environment:
    """A virtual environment of the benchmark's own, so that peers' pins bind nobody else."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def python(self) -> str:
        """Its interpreter."""
        return self.program("python")

    def program(self, name: str) -> str:
        """Where an installed program is."""
        return str(self._path / "bin" / name)

    def install(self, requirements: list[str]) -> None:
        """Create the environment and install what is missing from it."""
        if not Path(self.python).exists():
            subprocess.run([sys.executable, "-m", "venv", str(self._path)], check=True)
            (self._path / ".gitignore").write_text("*\n")
        installed = self.versions()
        missing = [name for name in requirements if name.partition("[")[0] not in installed]
        if missing:
            subprocess.run([self.python, "-m", "pip", "install", "-q", *missing], check=True)

    def versions(self) -> dict[str, str]:
        """Installed distributions."""
        command = [self.python, "-m", "pip", "list", "--format=json", "--disable-pip-version-check"]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return {entry["name"].lower(): entry["version"] for entry in json.loads(listed)}


class Peer(Subject):
    """A gateway installed by name."""

    #: What to install; the part before "[" is the distribution.
    requirement: str

    def __init__(self, environment: Environment, logs: Path) -> None:
        self._environment = environment
        self._logs = logs
        self._server: Server | None = None

    def notes(self) -> Notes:
        """See `Subject.notes`."""
        distribution = self.requirement.partition("[")[0]
        return Notes(self._environment.versions().get(distribution, "not installed"))

    def stop(self) -> None:
        """See `Subject.stop`."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def resident_bytes(self) -> int | None:
        """See `Subject.resident_bytes`."""
        return None if self._server is None else self._server.resident_bytes()

    def _launch(self, command: list[str], env: dict[str, str], ready: str) -> None:
        if self._server is not None:
            raise BenchError(f"{self.name} is running already")
        log = self._logs / f"{self.name}.log"
        self._server = Server(self.name, command, log=log, core=GATEWAY_CORE, env=env)
        self._server.wait_until_answering(ready)


class LiteLLM(Peer):
    """LiteLLM's proxy with a master key and no database."""

    name = "litellm"
    requirement = "litellm[proxy]"
    holds = False

    def start(self, upstream: str) -> list[Lane]:
        """See `Subject.start`."""
        port = free_port()
        config = self._logs / "litellm.json"
        config.write_text(json.dumps(self._config(upstream)))
        # JSON is YAML too.
        command = [self._environment.program("litellm"), "--config", str(config)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
        base = f"http://127.0.0.1:{port}"
        # Without this it downloads its price list at start.
        env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        self._launch(command, env, f"{base}/health/liveliness")
        return [Lane("LiteLLM", Endpoint(base, "bench", _KEY))]

    def _config(self, upstream: str) -> dict[str, object]:
        parameters = {"model": "openai/mock", "api_base": f"{upstream}/v1", "api_key": _KEY}
        return {
            "model_list": [{"model_name": "bench", "litellm_params": parameters}],
            "general_settings": {"master_key": _KEY},
            "litellm_settings": {"telemetry": False},
        }


class Ferrogw(Peer):
    """Ferro Labs' gateway, a Go program."""

    name = "ferrogw"
    requirement = "ferrogw"

    def start(self, upstream: str) -> list[Lane]:
        """See `Subject.start`."""
        port = free_port()
        env = {
            "HOST": "127.0.0.1",
            "PORT": str(port),
            "MASTER_KEY": _KEY,
            "ALLOW_UNAUTHENTICATED_PROXY": "true",
            "RATE_LIMIT_RPS": "1000000",
            "RATE_LIMIT_BURST": "1000000",
            "OPENAI_API_KEY": _KEY,
            "OPENAI_BASE_URL": upstream,
            "GOMAXPROCS": "1",
            "LOG_LEVEL": "error",
        }
        base = f"http://127.0.0.1:{port}"
        self._launch([self._environment.program("ferrogw"), "serve"], env, f"{base}/health")
        # It routes by model name, and knows only real ones.
        return [Lane("ferrogw", Endpoint(base, "gpt-4o-mini", _KEY))]


class VLLMRouter(Peer):
    """The vLLM project's router, a Rust program with a Python launcher."""

    name = "vllm-router"
    requirement = "vllm-router"

    def start(self, upstream: str) -> list[Lane]:
        """See `Subject.start`."""
        port = free_port()
        command = [self._environment.program("vllm-router"), "--host", "127.0.0.1"]
        command += ["--port", str(port), "--worker-urls", upstream, "--policy", "round_robin"]
        command += ["--max-concurrent-requests", "100000", "--log-level", "error"]
        command += ["--prometheus-port", str(free_port())]
        base = f"http://127.0.0.1:{port}"
        self._launch(command, {}, f"{base}/health")
        return [Lane("vllm-router", Endpoint(base, "mock"))]


PEERS: tuple[type[Peer], ...] = (LiteLLM, Ferrogw, VLLMRouter)
