# shellcheck shell=bash disable=SC2034,SC2154
# What the installer says, how it ends, and where it was when it failed.
readonly USAGE=2 PREREQUISITE=3 FAILED=4 TIMED_OUT=5
STEP=""

say() { printf '%s\n' "$*" >&2; }

# die CODE WORDS...
die() {
    local code=$1
    shift
    say "install.sh: $*"
    [[ -z ${WORK:-} ]] || : >"$WORK/told" 2>/dev/null || true
    trap - ERR
    exit "$code"
}

# A folder for everything rendered, gone at the end; and the name of the step, should one fail.
begin_work() {
    WORK=$(mktemp -d "${TMPDIR:-/tmp}/train-func-install.XXXXXX")
    trap 'end_work' EXIT
    trap 'failed_at "$LINENO" "$BASH_COMMAND"' ERR
    trap 'interrupted' INT TERM
}

end_work() {
    rm -rf "$WORK"
}

failed_at() {
    local code=$?
    [[ $BASH_SUBSHELL -eq 0 ]] || return "$code"
    [[ ! -e $WORK/told ]] || exit "$code" # the command that failed has said why
    say "install.sh: FAILED${STEP:+ in the step $STEP} (line $1: $2)"
    say "  next: fix what is said above, then run the same command again: it goes on where it is needed"
    exit "$FAILED"
}

interrupted() {
    trap - INT TERM ERR
    say "install.sh: interrupted${STEP:+ in the step $STEP}; the same command goes on where it is needed"
    exit 130
}

# step NUMBER NAME: what is worked on from here
step() {
    STEP=$2
    say "[$1] $2"
}
