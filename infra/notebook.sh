#!/usr/bin/env bash
# Runs notebook 01 headless, with parameters from the environment: infra/notebook.sh   (make run)
#   WHERE MODEL DATASET TEXT LABEL LABELS HELD_OUT SAMPLES WORKERS EPOCHS BATCH_SIZE LEARNING_RATE SEED
#             as the notebook's first cell has them; what is not given stays as it is there
#   FRESH=1   train again although it was done before
# What the cells print goes to the screen; what papermill says, to a file, whose end explains a failure. Each execution
# has a notebook of its own, with the time in its name; build/01_finetune.ipynb is a link to the last that succeeded.
# What is refused before a job is submitted keeps neither.
set -Eeuo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
NAME=01_finetune
SUCCEEDED=build/$NAME.ipynb
EXECUTED=build/$NAME-$(date +%Y%m%d-%H%M%S-%3N).ipynb
LOG=${EXECUTED%.ipynb}.log
OURS='^(InvalidInput|SourceRefused|StorageFailed|JobFailed|JobNotFound): '
GIVEN=()
SAID=$(mktemp) # what the cells print
trap 'rm -f "$SAID"' EXIT

say() { printf '%s\n' "$*" >&2; }

die() {
    say "$*"
    exit 1
}

# A file named from here is found by the notebook too, whose folder is another one, and missed by its full name.
from_here() {
    case $1 in
        *://*) printf '%s\n' "$1" ;;
        *.csv | *.tsv | *.json | *.jsonl | *.parquet | ./* | ../*) realpath -ms -- "$1" ;;
        *) if [[ -e $1 ]]; then realpath -s -- "$1"; else printf '%s\n' "$1"; fi ;;
    esac
}

fresh() {
    case ${FRESH:-} in
        1 | yes | true | True) GIVEN+=(-p fresh True) ;;
        '' | 0 | no | false | False) ;;
        *) die "FRESH=$FRESH: 1 or 0 is expected" ;;
    esac
}

parameters() {
    local name value
    for name in WHERE MODEL DATASET TEXT LABEL LABELS HELD_OUT SAMPLES WORKERS EPOCHS BATCH_SIZE LEARNING_RATE SEED; do
        value=${!name:-}
        [[ -n $value ]] || continue
        [[ $name != MODEL && $name != DATASET ]] || value=$(from_here "$value")
        GIVEN+=(-p "${name,,}" "$value")
    done
    fresh
}

# The job that the notebook has submitted or found; empty before that.
job() { grep -oEm 1 '^[a-z][a-z0-9-]*-[0-9a-f]{12}: ' "$SAID" | cut -d: -f1; }

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
    echo "notebook $NAME runs"
    # Through a pipe: papermill would truncate the file that a user redirects this script's output to.
    if ! .venv/bin/papermill "notebooks/$NAME.ipynb" "$EXECUTED" --cwd notebooks --kernel python3 --no-progress-bar \
        --stdout-file /dev/stdout "${GIVEN[@]}" 2>"$LOG" | tee -i "$SAID"; then
        explain
        exit 1
    fi
    rm -f "$LOG"
    ln -sfT "${EXECUTED#build/}" "$SUCCEEDED"
    echo "the executed notebook: $EXECUTED ($SUCCEEDED leads to it until the next that succeeds)"
}
main "$@"
