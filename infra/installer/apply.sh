# shellcheck shell=bash disable=SC2034,SC2154
# Brings objects into the cluster: looks first whether anything differs, and says what was done.
CHANGED=()

# apply COMPONENT FILE: server-side, all of it; nothing when nothing differs
apply() {
    local component=$1 file=$2
    if same "$file"; then
        say "  unchanged"
        return
    fi
    if [[ $DRY_RUN == true ]]; then
        say "  would be applied:"
        objects_of "$file" | sed 's/^/    /' >&2
        return
    fi
    k apply --server-side --force-conflicts --field-manager "$OWNER" --filename "$file" |
        sed 's/ serverside-applied$//; s/^/  applied /' >&2
    CHANGED+=("$component")
}

# same FILE: whether the cluster has exactly this already
same() {
    local code=0
    k diff --server-side --force-conflicts --field-manager "$OWNER" --filename "$1" >/dev/null 2>&1 || code=$?
    [[ $code -eq 0 ]]
}

objects_of() {
    awk '/^kind:/ { kind = $2 } /^  name:/ && kind { print kind "/" $2; kind = "" }' "$1"
}

# ready NAMESPACE KIND/NAME...: waits for each; on failure shows what is known and ends
ready() {
    local namespace=$1 what end
    shift
    [[ $DRY_RUN == false ]] || return 0
    for what in "$@"; do
        end=$((SECONDS + $(seconds "$TIMEOUT")))
        until k rollout status "$what" --namespace "$namespace" --timeout "$(slice $((end - SECONDS)))" >/dev/null 2>&1; do
            if ((SECONDS >= end)); then
                evidence "$namespace"
                die "$TIMED_OUT" "$what in $namespace was not ready within $TIMEOUT ($(waits "$namespace")); \
next: fix what stands above, then the same command again"
            fi
            say "  waiting for $what: $(waits "$namespace")"
        done
    done
}

# slice SECONDS: of a wait, so that something is said from time to time
slice() { printf '%ss\n' $(($1 > 15 ? 15 : $1 > 1 ? $1 : 1)); }

# waits NAMESPACE: which pods are not ready, and what their containers say of it
waits() {
    local found each='{.metadata.name} {.status.phase} {range .status.containerStatuses[*]}{.ready} {.state.waiting.reason} {end}'
    found=$(k get pods --namespace "$1" --output "jsonpath={range .items[*]}$each{'\n'}{end}" 2>/dev/null |
        awk 'NF && !/Succeeded/ && !/ true/ { gsub(/ false/, ""); gsub(/ +/, " "); printf "%s%s", (n++ ? ", " : ""), $0 }') || true
    printf '%s' "${found:-no pod yet}"
}

# evidence NAMESPACE: pods that are not well, what happened, and their last lines
evidence() {
    local pod
    say "  pods of $1:"
    k get pods --namespace "$1" --output wide >&2 || true
    say "  events:"
    k get events --namespace "$1" --field-selector type=Warning --sort-by .lastTimestamp 2>/dev/null | tail -n 10 >&2 || true
    for pod in $(k get pods --namespace "$1" --output name 2>/dev/null); do
        if [[ $(k get "$pod" --namespace "$1" --output 'jsonpath={.status.conditions[?(@.type=="Ready")].status}') != True ]]; then
            say "  last lines of $pod:"
            k logs "$pod" --namespace "$1" --all-containers --tail 10 >&2 || true
        fi
    done
}

# within LIMIT WHAT COMMAND...: tries it again until it succeeds; then shows its last words and ends
within() {
    local limit=$1 what=$2 end said
    shift 2
    end=$((SECONDS + $(seconds "$limit")))
    until said=$("$@" 2>&1); do
        ((SECONDS < end)) || die "$TIMED_OUT" "$what: not within $limit; the last answer was: $said"
        sleep 1
    done
}
