#!/usr/bin/env bash
# Writes requirements/runtime.txt: the exact versions of everything that Sluice needs at run time.
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$1" -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet --disable-pip-version-check .
{
    echo "# Written by \`make lock\`: the run-time dependencies, pinned."
    "$scratch/venv/bin/pip" freeze --exclude sluice-gateway
} > requirements/runtime.txt
