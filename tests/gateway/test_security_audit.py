"""The audit of dependencies: pip-audit itself, against a vulnerability service of the test's."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.harness.gateway import free_port

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parents[2] / "requirements" / "audit.py"
TODAY = datetime.now(UTC).date()


def vulnerability(name: str, fixed: str | None) -> dict[str, Any]:
    """An entry of the OSV database."""
    events = [{"introduced": "0"}, *([{"fixed": fixed}] if fixed else [])]
    return {
        "id": f"PYSEC-2026-{name}",
        "aliases": [f"CVE-2026-{name}"],
        "modified": "2026-01-01T00:00:00Z",
        "published": "2026-01-01T00:00:00Z",
        "summary": "a flaw",
        "details": "a flaw",
        "affected": [
            {
                "package": {"name": name, "ecosystem": "PyPI"},
                "ranges": [{"type": "ECOSYSTEM", "events": events}],
                "versions": ["1.0"],
            }
        ],
    }


KNOWN = {"flawed": vulnerability("flawed", "1.1"), "hopeless": vulnerability("hopeless", None)}


class Service(BaseHTTPRequestHandler):
    """Speaks as an OSV service does."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        known = KNOWN.get(asked["package"]["name"])
        text = json.dumps({"vulns": [known]} if known else {}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """The URL of a vulnerability service."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1/query"
    server.shutdown()
    server.server_close()


def audit(tmp_path: Path, url: str, pinned: str, exceptions: str = "") -> tuple[int, str]:
    """Run the audit of pinned versions; gives its status and what it said."""
    (tmp_path / "pinned.txt").write_text(pinned)
    (tmp_path / "exceptions.toml").write_text(exceptions)
    command = [sys.executable, str(SCRIPT), "--requirements", str(tmp_path / "pinned.txt")]
    command += ["--exceptions", str(tmp_path / "exceptions.toml"), "--osv-url", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stderr


def exception(package: str, name: str, days: int) -> str:
    """An exception that expires so many days from now."""
    return (
        f'[[exception]]\nid = "{name}"\npackage = "{package}"\nreason = "not reachable"\n'
        f"expires = {TODAY + timedelta(days=days)}\n"
    )


def test_nothing_known_passes(tmp_path: Path, service: str) -> None:
    status, said = audit(tmp_path, service, "sound==1.0\n")
    assert status == 0
    assert "1 dependencies audited" in said
    assert "NOT AUDITED" not in said


def test_a_vulnerability_with_a_fix_fails(tmp_path: Path, service: str) -> None:
    status, said = audit(tmp_path, service, "sound==1.0\nflawed==1.0\n")
    assert status == 1
    assert "VULNERABLE: flawed 1.0: PYSEC-2026-flawed, fixed in 1.1" in said


def test_a_vulnerability_without_a_fix_warns(tmp_path: Path, service: str) -> None:
    status, said = audit(tmp_path, service, "hopeless==1.0\n")
    assert status == 0
    assert "warning: hopeless" in said


@pytest.mark.parametrize("name", ["PYSEC-2026-flawed", "CVE-2026-flawed"])
def test_an_exception_holds_until_its_day(tmp_path: Path, service: str, name: str) -> None:
    status, said = audit(tmp_path, service, "flawed==1.0\n", exception("flawed", name, 0))
    assert status == 0
    assert "not reachable" in said
    status, said = audit(tmp_path, service, "flawed==1.0\n", exception("flawed", name, -1))
    assert status == 1
    assert "expired" in said
    status, _ = audit(tmp_path, service, "flawed==1.0\n", exception("other", name, 9))
    assert status == 1


def test_an_exception_without_a_reason_or_a_day_is_no_exception(
    tmp_path: Path, service: str
) -> None:
    text = '[[exception]]\nid = "PYSEC-2026-flawed"\npackage = "flawed"\n'
    assert audit(tmp_path, service, "flawed==1.0\n", text)[0] != 0


def test_a_service_that_is_away_fails_no_build_and_is_loud(tmp_path: Path) -> None:
    status, said = audit(tmp_path, f"http://127.0.0.1:{free_port()}/v1/query", "flawed==1.0\n")
    assert status == 0
    assert "DEPENDENCIES WERE NOT AUDITED" in said
