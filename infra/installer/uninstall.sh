# shellcheck shell=bash disable=SC2034,SC2154
# Takes away what install made, and nothing else: found by its label, whatever the options were then.

# All kinds that install.sh makes; a test compares the cluster before and after.
readonly KINDS=deployments.apps,statefulsets.apps,jobs.batch,services,configmaps,secrets,serviceaccounts,\
roles.rbac.authorization.k8s.io,rolebindings.rbac.authorization.k8s.io,clusterroles.rbac.authorization.k8s.io,\
clusterrolebindings.rbac.authorization.k8s.io,networkpolicies.networking.k8s.io,\
validatingwebhookconfigurations.admissionregistration.k8s.io,customresourcedefinitions.apiextensions.k8s.io,\
persistentvolumeclaims,namespaces

uninstall_all() {
    local going left
    choose_cluster
    settle true
    record_wanted
    going=$(everything_going) || exit
    if [[ -z $going ]]; then
        say "nothing is installed on context $CONTEXT: nothing to remove$(purge_hint)"
        return
    fi
    refuse_while_jobs_run
    confirm "uninstall"
    if [[ $DRY_RUN == true ]]; then
        say "would be removed$([[ $PURGE == true ]] || printf ', and the namespaces where nothing else is left in them'):"
        printf '  %s\n' "${going//$'\n'/$'\n'  }" >&2
        [[ $PURGE == false ]] || tell_purge
        return
    fi
    [[ $PURGE == false ]] || confirm_purge
    remove_component jupyterhub
    remove_component jobs
    remove_component operator
    remove_component s3
    remove_volumes
    remove_component openebs
    remove_rest
    left=$(left_behind) || exit
    [[ $left == nothing || $PURGE == true ]] || left+="; install finds it again, --purge removes it"
    say "uninstalled; left: $left"
}

# What is to go: objects and helm releases, but namespaces only when they go whatever lies in them.
everything_going() {
    local found releases kept='^namespace/'
    [[ $PURGE == false ]] || kept='^$'
    found=$(everything_ours) || exit
    releases=$(our_releases) || exit
    { keep_volumes <<<"$found"; printf '%s\n' "$releases"; } | grep -vE "$kept|^$" || true
}

our_releases() {
    local found
    found=$(asked secrets --all-namespaces --selector "owner=helm,made-by=$OWNER" --output \
        'jsonpath={range .items[*]}release/{.metadata.labels.name} {.metadata.namespace}{"\n"}{end}') || exit
    sort -u <<<"$found"
}

purge_hint() {
    local left
    left=$(left_behind) || exit
    [[ $left == nothing || $PURGE == true ]] || printf '; --purge would remove what was kept: %s' "$left"
}

# Of every kind that the operator runs; one that failed under ExitCode has no time of completion.
refuse_while_jobs_run() {
    local kind kinds running=""
    kinds=$(asked customresourcedefinitions --output name) || exit
    while read -r kind; do
        running+=$(running_of "$kind") || exit
    done < <(sed -nE 's#.*/((pytorch|tf|mpi|xgboost|paddle|jax)jobs\.kubeflow\.org)$#\1#p' <<<"$kinds")
    [[ -z $running ]] || die "$PREREQUISITE" "these jobs have not ended, wait for them or cancel them \
(kubectl --context $CONTEXT delete pytorchjob NAME -n NAMESPACE):$running"
}

running_of() { # running_of KIND: " NAMESPACE/NAME" of each that goes on
    local found name='{.metadata.namespace}/{.metadata.name}'
    local state='{range .status.conditions[?(@.status=="True")]}{.type},{end}'
    found=$(asked "$1" --all-namespaces --output "jsonpath={range .items[*]}$name $state{'\n'}{end}") || exit
    awk 'NF && $2 !~ /Succeeded|Failed/ { printf " %s", $1 }' <<<"$found"
}

tell_purge() {
    local name others
    say "--purge removes the volumes with every model in them, and the namespaces ${NAMESPACES[*]}"
    for name in "${NAMESPACES[@]}"; do
        others=$(others_in "$name") || exit
        [[ -z $others ]] || say "  in $name, not made by install.sh, and removed with it: $(paste -sd' ' <<<"$others")"
    done
}

confirm_purge() {
    local answer
    tell_purge
    [[ ! -t 0 ]] || printf 'type the name of the context to go on: ' >&2
    read -r answer || answer=""
    [[ $answer == "$CONTEXT" ]] || die "$USAGE" "not agreed, the name of the context is expected on standard input; nothing was changed"
}

# remove_component NAME: its helm release if it is one, then whatever carries its label
remove_component() {
    local found
    step "remove" "$1"
    if declare -F "remove_$1" >/dev/null; then
        "remove_$1"
    fi
    found=$(everything_ours "app.kubernetes.io/component=$1") || exit
    keep_volumes <<<"$found" | delete_each
}

# Before OpenEBS, which has to take their folders away.
remove_volumes() {
    local found
    [[ $PURGE == true ]] || return 0
    found=$(everything_ours) || exit
    { grep '^persistentvolumeclaim/' || true; } <<<"$found" | delete_each
}

# The record goes last but for the namespaces: as long as it is there, a run that was interrupted is known as one.
remove_rest() {
    local found name
    step "remove" "namespaces"
    found=$(everything_ours) || exit
    { grep -vE "^(namespace/|configmap/$STATE_NAME )" || true; } <<<"$found" | keep_volumes | delete_each
    printf 'configmap/%s %s\n' "$STATE_NAME" "$STATE_NAMESPACE" | delete_each
    for name in "${NAMESPACES[@]}"; do
        remove_namespace "$name"
    done
}

# remove_namespace NAME: one of ours, if nothing is left in it that somebody may want
remove_namespace() {
    local left=""
    ours namespace "$1" || return 0
    if [[ $PURGE == false ]]; then
        left=$(others_in "$1") || exit
    fi
    if [[ -n $left ]]; then
        say "  kept namespace $1, with $(paste -sd' ' <<<"$left")"
    else
        k delete namespace "$1" --timeout "$TIMEOUT" --request-timeout 0 | sed 's/^/  /' >&2
    fi
}

# others_in NAMESPACE: "kind/name" of whatever is in it and is not removed otherwise; Kubernetes' own things left out
others_in() {
    local kinds found labels='{.metadata.labels.app\.kubernetes\.io/managed-by} {.metadata.labels.owner}'
    exists namespace "$1" || return 0
    kinds=$(k api-resources --namespaced --verbs list,delete --output name) ||
        die "$FAILED" "context $CONTEXT did not tell all the kinds that it has; what kubectl said stands above"
    kinds=$(grep -vE '^(events|endpoints|endpointslices|leases|controllerrevisions|pods\.metrics)\b' <<<"$kinds" | paste -sd,)
    found=$(asked "$kinds" --namespace "$1" --output \
        "jsonpath={range .items[*]}{.kind}/{.metadata.name} owned{.metadata.ownerReferences[0].kind} $labels{'\n'}{end}") || exit
    awk -v ours="$OWNER" -v purge="$PURGE" '
        $1 == "ServiceAccount/default" || $1 == "ConfigMap/kube-root-ca.crt" || $2 != "owned" { next }
        purge == "true" && ($3 == ours || $3 == "Helm" || $3 == "helm") { next }
        { print $1 }' <<<"$found"
}

# Everything with our label, "kind.group/name NAMESPACE" a line; a selector narrows it down.
everything_ours() {
    local found
    found=$(asked "$KINDS" --all-namespaces --selector "$MANAGED${1:+,$1}" --output \
        'jsonpath={range .items[*]}{.kind}{" "}{.apiVersion}{" "}{.metadata.name}{" "}{.metadata.namespace}{"\n"}{end}') || exit
    awk 'NF { n = split($2, v, "/"); print tolower($1) (n > 1 ? "." v[1] : "") "/" $3, $4 }' <<<"$found" | sort -u
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
            "") ;;
            customresourcedefinition.*) delete_definition "${what#*/}" ;;
            *) k delete "$what" ${namespace:+--namespace "$namespace"} --ignore-not-found --timeout "$TIMEOUT" \
                --request-timeout 0 | sed 's/^/  /' >&2 ;;
        esac
    done
}

# A definition takes all its objects with it.
delete_definition() {
    local found="" kind=$1
    if [[ $PURGE == false ]]; then
        found=$(asked "$kind" --all-namespaces --output name) || exit
    fi
    if [[ -n $found ]]; then
        say "  kept $kind: there still are some"
        return
    fi
    k delete customresourcedefinition "$kind" --ignore-not-found --timeout "$TIMEOUT" --request-timeout 0 | sed 's/^/  /' >&2
}

left_behind() {
    local found
    found=$(everything_ours) || exit
    found=$(awk 'NF { print $1 }' <<<"$found" | paste -sd' ')
    printf '%s\n' "${found:-nothing}"
}
