# shellcheck shell=bash disable=SC2034,SC2154
# Takes away what install made, and nothing else: found by its label, whatever the options were then.

uninstall_all() {
    choose_cluster
    settle true
    [[ -n $(recorded profile) ]] || die "$USAGE" "nothing is installed on context $CONTEXT: nothing to remove"
    refuse_while_jobs_run
    confirm "uninstall"
    if [[ $PURGE == true ]]; then
        confirm_purge
    fi
    if [[ $DRY_RUN == true ]]; then
        say "would be removed:"
        everything_ours | sed 's/^/  /' >&2
        return
    fi
    remove_component jupyterhub
    remove_component jobs
    remove_component operator
    remove_component s3
    remove_component openebs
    remove_rest
    say "uninstalled; left: $(left_behind)"
}

refuse_while_jobs_run() {
    local running
    running=$(k get pytorchjobs --all-namespaces --output \
        'jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name} {.status.completionTime}{"\n"}{end}' 2>/dev/null |
        awk 'NF == 1 { print $1 }')
    [[ -z $running ]] || die "$PREREQUISITE" "these jobs have not ended, wait for them or cancel them: $(paste -sd' ' <<<"$running")"
}

confirm_purge() {
    local answer
    say "--purge removes the volumes with every model in them, and the namespaces kubeflow and train-func"
    if [[ $YES == true ]]; then
        return
    fi
    read -rp "type the name of the context to go on: " answer
    [[ $answer == "$CONTEXT" ]] || die "$USAGE" "not agreed; nothing was changed"
}

# remove_component NAME: its helm release if it is one, then whatever carries its label
remove_component() {
    step "remove" "$1"
    if declare -F "remove_$1" >/dev/null; then
        "remove_$1"
    fi
    everything_ours "app.kubernetes.io/component=$1" | keep_volumes | delete_each
}

remove_rest() {
    step "remove" "namespaces"
    everything_ours | grep -v '^namespace/' | keep_volumes | delete_each
    local name kept
    for name in kubeflow train-func; do
        kept=$(kept_in "$name") # an answer that fails ends here: it must not look like an empty namespace
        if ours namespace "$name" && [[ -z $kept ]]; then
            k delete namespace "$name" --timeout "$TIMEOUT" --request-timeout 0 | sed 's/^/  /' >&2
        fi
    done
}

# Everything with our label, "kind.group/name NAMESPACE" a line; a selector narrows it down.
everything_ours() {
    local kinds
    kinds=$(k api-resources --verbs list,delete --output name 2>/dev/null | grep -vE '^(events|endpoints)' | paste -sd,)
    k get "$kinds" --all-namespaces --selector "$MANAGED${1:+,$1}" --ignore-not-found --output \
        'jsonpath={range .items[*]}{.kind}{" "}{.apiVersion}{" "}{.metadata.name}{" "}{.metadata.namespace}{"\n"}{end}' |
        awk '{ n = split($2, v, "/"); print tolower($1) (n > 1 ? "." v[1] : "") "/" $3, $4 }' | sort -u
}

# Drops the store's volumes and root key unless they are to go: a volume without its key is of no use.
keep_volumes() {
    if [[ $PURGE == true ]]; then
        cat
    else
        grep -vE '^(persistentvolumeclaim/|secret/myminio kubeflow$)' || true
    fi
}

delete_each() {
    local what namespace
    while read -r what namespace; do
        case $what in
            customresourcedefinition.*) delete_definition "${what#*/}" ;;
            *) k delete "$what" ${namespace:+--namespace "$namespace"} --ignore-not-found --timeout "$TIMEOUT" \
                --request-timeout 0 | sed 's/^/  /' >&2 ;;
        esac
    done
}

# A definition takes all its objects with it.
delete_definition() {
    local plural=${1%%.*} group=${1#*.}
    if [[ $PURGE == false && -n $(k get "$plural.$group" --all-namespaces --output name 2>/dev/null) ]]; then
        say "  kept $plural.$group: there still are some"
        return
    fi
    k delete customresourcedefinition "$1" --ignore-not-found --timeout "$TIMEOUT" --request-timeout 0 | sed 's/^/  /' >&2
}

ours() { # ours KIND NAME
    [[ -n $(k get "$1" --selector "$MANAGED" --field-selector "metadata.name=$2" --output name 2>/dev/null) ]]
}

# What in a namespace is worth keeping.
kept_in() {
    local kind
    [[ $PURGE == false ]] || return 0
    # One by one: where the definition of jobs has gone, asking for both would answer nothing, and nothing means remove.
    k get persistentvolumeclaims --namespace "$1" --output name || return
    for kind in $(k api-resources --api-group kubeflow.org --verbs list --output name); do
        k get "$kind" --namespace "$1" --output name || return
    done
}

left_behind() {
    local found
    found=$(everything_ours | awk '{ print $1 }' | paste -sd' ')
    printf '%s\n' "${found:-nothing}"
}
