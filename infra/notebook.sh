#!/usr/bin/env bash
# Runs a notebook headless, with parameters from the environment: infra/notebook.sh [NOTEBOOK]   (make run)
#   NOTEBOOK  of notebooks/, 01_finetune without it
#   WORKERS=3 and the like: whatever the notebook's first cell sets, in capitals; what is not given stays as it is there
# What the cells print goes to the screen; what papermill says, to a file, whose end explains a failure. Each execution
# has a notebook of its own, with the time in its name; build/NOTEBOOK.ipynb is a link to the last that succeeded.
# What is refused before a job is submitted keeps neither.
set -Eeuo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
NOTEBOOK=${1:-01_finetune}
SUCCEEDED=build/$NOTEBOOK.ipynb
EXECUTED=build/$NOTEBOOK-$(date +%Y%m%d-%H%M%S-%3N).ipynb
LOG=${EXECUTED%.ipynb}.log
OURS='^(InvalidInput|SourceRefused|StorageFailed|JobFailed|JobNotFound): '
GIVEN=()
SAID=$(mktemp) # what the cells print
trap 'rm -f "$SAID"' EXIT

say() { printf '%s\n' "$*" >&2; }

# Through a file, because a variable holds no NUL.
parameters() {
    .venv/bin/python infra/notebook_parameters.py "$NOTEBOOK" --given >"$SAID" || exit 1
    mapfile -d '' -t GIVEN <"$SAID"
}

# The job that the notebook has submitted or found last; empty before that.
job() { grep -oE '^[a-z][a-z0-9-]*-[0-9a-f]{12}: ' "$SAID" | tail -n 1 | cut -d: -f1; }

# The way to it from a shell.
cancel() { printf 'make cancel %sJOB=%s' "${WHERE:+WHERE=$WHERE }${STORE:+STORE=$STORE }" "$(job)"; }

explain() {
    if grep -qE "$OURS" "$LOG"; then
        awk -v ours="$OURS" '$0 ~ ours { told = 1 } told' "$LOG" >&2
    else
        sed -n '/^Exception encountered/,$p' "$LOG" >&2
    fi
    ! grep -qE 'Cluster\((store|image)=' "$LOG" || say "from make, these options are STORE=... and IMAGE=..."
    if grep -qE "$OURS" "$LOG" && [[ -z $(job) ]]; then
        rm -f "$EXECUTED" "$LOG"
        return
    fi
    ! grep -q 'cancel()' "$LOG" || say "from a shell, cancel() is: $(cancel)"
    say "the notebook as far as it came: $EXECUTED"
}

interrupted() {
    if [[ -z $(job) ]]; then
        rm -f "$EXECUTED" "$LOG"
        say "interrupted before a job was submitted"
        exit 130
    fi
    say "interrupted. The job goes on: make run with the same parameters shows it again, $(cancel) stops it"
    exit 130
}

main() {
    cd "$ROOT"
    mkdir -p build
    parameters
    trap interrupted INT
    echo "notebook $NOTEBOOK runs"
    # Through a pipe: papermill would truncate the file that a user redirects this script's output to.
    if ! .venv/bin/papermill "notebooks/$NOTEBOOK.ipynb" "$EXECUTED" --cwd notebooks --kernel python3 --no-progress-bar \
        --stdout-file /dev/stdout "${GIVEN[@]}" 2>"$LOG" | tee -i "$SAID"; then
        explain
        exit 1
    fi
    rm -f "$LOG"
    ln -sfT "${EXECUTED#build/}" "$SUCCEEDED"
    echo "the executed notebook: $EXECUTED ($SUCCEEDED leads to it until the next that succeeds)"
}
main "$@"
