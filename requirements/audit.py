"""Looks for known vulnerabilities in the pinned run-time dependencies.

Fails on one that has a fix, unless it is excepted in `audit-exceptions.toml` and the exception has
not expired. A vulnerability service that can't be reached, or knows nothing of our versions, fails
no build, and passes none silently either: what was not looked at is said.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TIMEOUT_SECONDS = 300


@dataclass(frozen=True)
class Excepted:
    """A vulnerability that is known not to matter here, for now."""

    id: str
    package: str
    reason: str
    expires: date


@dataclass
class Verdict:
    """What came out: lines for people, by what they mean for the build."""

    failures: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


def judge(report: dict[str, Any], exceptions: Sequence[Excepted], today: date) -> Verdict:
    """Judge a report of pip-audit's."""
    verdict = Verdict()
    for dependency in report["dependencies"]:
        name = dependency["name"]
        if "skip_reason" in dependency:
            verdict.unseen.append(name)
        for found in dependency.get("vulns", []):
            ids = {found["id"], *found.get("aliases", [])}
            line = f"{name} {dependency['version']}: {found['id']}"
            excepted = next((e for e in exceptions if e.package == name and e.id in ids), None)
            if not found["fix_versions"]:
                verdict.warnings.append(f"{line}, and there is no fix yet")
            elif excepted is None:
                verdict.failures.append(f"{line}, fixed in {', '.join(found['fix_versions'])}")
            elif excepted.expires < today:
                verdict.failures.append(f"{line}: its exception expired on {excepted.expires}")
            else:
                verdict.warnings.append(
                    f"{line}, excepted until {excepted.expires}: {excepted.reason}"
                )
    return verdict


def read_exceptions(path: Path) -> list[Excepted]:
    """The exceptions of a file; every member is required."""
    entries = tomllib.loads(path.read_text()).get("exception", [])
    return [Excepted(**entry) for entry in entries]


def audit(requirements: Path, osv_url: str | None) -> dict[str, Any] | str:
    """pip-audit's report, or why there is none."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(requirements)]
    command += ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    if osv_url is not None:
        command += ["--vulnerability-service", "osv", "--osv-url", osv_url]
    try:
        done = subprocess.run(  # noqa: S603 - our own arguments
            command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
        report: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return "the vulnerability service did not answer in time"
    except json.JSONDecodeError:
        return (done.stderr.strip().splitlines() or ["pip-audit gave no report"])[-1]
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit, say what was found, give the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requirements", type=Path, default=HERE / "runtime.txt")
    parser.add_argument("--exceptions", type=Path, default=HERE / "audit-exceptions.toml")
    parser.add_argument("--osv-url", help="an OSV service to ask instead of PyPI's")
    given = parser.parse_args(arguments)
    report = audit(given.requirements, given.osv_url)
    if isinstance(report, str):
        return _not_audited(report)
    verdict = judge(report, read_exceptions(given.exceptions), datetime.now(UTC).date())
    for line in verdict.warnings:
        _say(f"warning: {line}")
    for line in verdict.failures:
        _say(f"VULNERABLE: {line}")
    if verdict.unseen:
        _not_audited(f"the service knows nothing of {', '.join(verdict.unseen)}")
    seen = len(report["dependencies"]) - len(verdict.unseen)
    _say(f"{seen} dependencies audited, {len(verdict.failures)} with a fix to take")
    return 1 if verdict.failures else 0


def _not_audited(why: str) -> int:
    _say("=" * 72)
    _say("DEPENDENCIES WERE NOT AUDITED. This build says nothing about vulnerabilities:")
    _say(why)
    _say("=" * 72)
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
