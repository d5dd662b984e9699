#!/usr/bin/env bash
# Install the engines that the tests run against, each into an environment of its own at the root of
# the repository, and build the tiny model. Takes minutes and 3.5 GB once, and nothing when all is
# up to date.
#
#   tests/engines/install.sh              both engines
#   tests/engines/install.sh katan        one of them: vllm or katan
#   PYTHON=python3.12 tests/engines/install.sh
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
model="$root/.cache/tiny-model"

# Where pip finds no CPU wheel of torch by itself, PyTorch's own index of CPU wheels has it: its
# address goes into TORCH_INDEX_URL.
torch_index="${TORCH_INDEX_URL:-}"

say() { echo "engines: $*" >&2; }

find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
        # What was asked for is used or refused, never replaced.
        if [[ -n "${PYTHON:-}" ]]; then break; fi
    done
    say "no Python of 3.11 or later found${PYTHON:+ as $PYTHON}"
    return 1
}

checksum() { "$python" -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest(), end="")' "$1"; }

is_current() { # is_current STAMP FILE: does the stamp hold the file's checksum?
    [[ -f "$1" && "$(<"$1")" == "$(checksum "$2")" ]]
}

install_vllm_packages() { # PIP REQUIREMENTS
    local pip=("$1" -m pip install --quiet --disable-pip-version-check --requirement "$2")
    if ! "${pip[@]}"; then
        if [[ -z "$torch_index" ]]; then
            say "if no CPU wheel of torch was found: set TORCH_INDEX_URL to PyTorch's CPU wheel index"
            return 1
        fi
        say "trying again with TORCH_INDEX_URL"
        "${pip[@]}" --extra-index-url "$torch_index"
    fi
    # transformers imports these when it finds them, and their operators don't match a CPU torch.
    "$1" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
}

install_katan_packages() { # PIP REQUIREMENTS
    "$1" -m pip install --quiet --disable-pip-version-check --requirement "$2"
}

install_engine() { # NAME
    local venv="$root/.venv-$1" requirements="$here/requirements-$1.txt"
    if is_current "$venv/installed" "$requirements" && "$venv/bin/python" -c ''; then
        return
    fi
    say "installing $1 into ${venv#"$root/"}"
    rm -rf "$venv"
    "$python" -m venv "$venv"
    "install_$1_packages" "$venv/bin/python" "$requirements"
    # Last, so that an installation cut short is begun anew.
    checksum "$requirements" >"$venv/installed"
}

build_model() {
    if is_current "$model/complete" "$here/tiny_model.py"; then
        return
    fi
    say "building the tiny model into ${model#"$root/"}"
    "$root/.venv-vllm/bin/python" "$here/tiny_model.py" "$model"
}

main() {
    local engine
    if (($# == 0)); then set -- vllm katan; fi
    python="$(find_python)"
    for engine in "$@"; do
        # No `&&` between the steps: it would switch `set -e` off inside them.
        case "$engine" in
            vllm)
                install_engine vllm
                build_model
                ;;
            katan) install_engine katan ;;
            *)
                say "unknown engine $engine: vllm or katan"
                return 2
                ;;
        esac
    done
    say "ready"
}

main "$@"
