#!/usr/bin/env bash
# Makes .venv from requirements.lock: infra/environment.sh
# Safe to run twice: does nothing when .venv already holds exactly this lock file. One that holds another is changed in
# place, once everything is downloaded, and not while jobs train from it. One whose set-up did not end is made anew.
# Needs Python 3.11 or newer with venv (PYTHON=... names one), and PyPI or the mirror that uv or pip is set to.
set -Eeuo pipefail
shopt -s inherit_errexit # a failing line ends a $(...) too
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv
LOCK=$ROOT/requirements.lock
DOWNLOAD_GB=3 # torch from PyPI brings the CUDA libraries
DISK_GB=6
trap 'say "failed at line $LINENO; run it again: what is downloaded stays"' ERR

say() { printf 'environment: %s\n' "$*" >&2; }

die() {
    say "$*"
    trap - ERR
    exit 1
}

find_python() {
    local name
    for name in "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$name"
            return
        fi
    done
    die "no Python 3.11 or newer found; install one, or name it: make setup PYTHON=/path/to/python3.12"
}

free_gb() { df -Pk "$ROOT" | awk 'NR == 2 { print int($4 / 1048576) }'; }

# What the environment was made of: when this changes, so does the environment.
fingerprint() { cat "$LOCK" "$ROOT/pyproject.toml" "${BASH_SOURCE[0]}" | sha256sum | cut -d' ' -f1; }

# The lock file's own entry of uv, so that the installer is pinned by hash like everything else.
lock_entry_of_uv() { awk '/^[a-zA-Z0-9]/ { wanted = /^uv==/ } wanted' "$LOCK"; }

version_of() { "$1" -c 'import sys; print(sys.version)' 2>/dev/null || true; } # version_of PYTHON

# A rank that starts again, or imports late, would mix the packages of before with those of now.
refuse_while_jobs_run() {
    local file words found=()
    for file in /proc/[0-9]*/cmdline; do
        { mapfile -d '' -t words <"$file"; } 2>/dev/null || continue # it has ended
        # The same folder, by whatever symbolic link the job was started.
        if [[ "${words[*]}" == *" -m train_func."* && ${words[0]%/*} -ef $VENV/bin ]]; then
            file=${file%/cmdline}
            found+=("${file#/proc/}")
        fi
    done
    ((!${#found[@]})) || die "jobs train from $VENV (processes ${found[*]}), and other packages are expected in it:" \
        "wait for them or cancel them (make cancel JOB=NAME; .venv/bin/python -m train_func runs lists them), then try again"
}

install() {
    local python=$1 entry index sync
    refuse_while_jobs_run
    say "up to $DOWNLOAD_GB GB to download and $DISK_GB GB on disk, once; $(free_gb) GB are free here"
    (($(free_gb) >= DISK_GB)) || die "not enough room in $ROOT: $DISK_GB GB are needed"
    # Without .made-of the last set-up did not end: pip may be missing, and uv takes half a package for a whole one.
    if [[ ! -e $VENV/.made-of || $(version_of "$VENV/bin/python") != "$(version_of "$python")" ]]; then
        rm -f "$VENV/.made-of"
        "$python" -m venv --clear "$VENV" || die "'$python -m venv' failed; on Debian and Ubuntu: apt install python3-venv"
    fi
    entry=$(mktemp)
    lock_entry_of_uv >"$entry"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$entry"
    rm -f "$entry"
    # Without one of its own, the mirror that pip is told of, which uv does not look for; it goes before one in a uv.toml.
    index=${UV_DEFAULT_INDEX:-${UV_INDEX_URL:-${PIP_INDEX_URL:-$("$VENV/bin/python" -m pip config get global.index-url 2>/dev/null || true)}}}
    unset UV_DEFAULT_INDEX
    [[ -z $index ]] || export UV_DEFAULT_INDEX=$index
    # Compiled once here: where PYTHONDONTWRITEBYTECODE is set, every worker would otherwise compile torch for 15 s.
    # A busy machine takes its time for that: only what fails ends the set-up.
    sync=("$VENV/bin/uv" pip sync --python "$VENV/bin/python" --compile-bytecode --require-hashes "$LOCK")
    "${sync[@]}" --quiet --dry-run # an index that does not answer leaves a whole environment whole
    rm -f "$VENV/.made-of"         # from here on it may hold a part of each
    UV_COMPILE_BYTECODE_TIMEOUT=0 "${sync[@]}"
    "$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" --no-deps --no-build-isolation -e "$ROOT"
}

main() {
    local wanted python
    wanted=$(fingerprint)
    [[ $(cat "$VENV/.made-of" 2>/dev/null) != "$wanted" ]] || return 0
    python=$(find_python) || exit
    install "$python"
    printf '%s\n' "$wanted" >"$VENV/.made-of"
    say "ready in $VENV"
}
main "$@"
