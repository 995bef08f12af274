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
    everything_ours >"$WORK/ours" || exit
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
    local releases kept='^namespace/'
    [[ $PURGE == false ]] || kept='^$'
    releases=$(our_releases) || exit
    { keep_volumes <"$WORK/ours" | awk '{ print $1, $2 == "-" ? "" : $2 }'; printf '%s\n' "$releases"; } | grep -vE "$kept|^$" || true
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

# Of both kinds that use the store: PyTorchJob, and TrainJob, whose success is Complete. A job that failed under ExitCode
# has no time of completion, so conditions are read.
refuse_while_jobs_run() {
    local kinds running="" name='{.kind} {.metadata.namespace}/{.metadata.name}'
    local state='{range .status.conditions[?(@.status=="True")]}{.type},{end}'
    kinds=$(asked customresourcedefinitions --no-headers --ignore-not-found) || exit
    kinds=$(grep -oE '^(pytorchjobs\.kubeflow|trainjobs\.trainer\.kubeflow)\.org' <<<"$kinds" | paste -sd,) || true
    [[ -n $kinds ]] || return 0
    running=$(asked "$kinds" --all-namespaces --output "jsonpath={range .items[*]}$name $state{'\n'}{end}") || exit
    running=$(awk 'NF && $3 !~ /Succeeded|Complete|Failed/ { printf "%s%s %s", (n++ ? ", " : ""), $1, $2 }' <<<"$running")
    [[ -z $running ]] || die "$PREREQUISITE" "these jobs have not ended, wait for them or cancel them \
(kubectl --context $CONTEXT delete KIND NAME -n NAMESPACE): $running"
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
    step "remove" "$1"
    if declare -F "remove_$1" >/dev/null; then
        "remove_$1"
    fi
    awk -v of="$1" '$3 == of' "$WORK/ours" | keep_volumes | keep_definitions_in_use | delete_each
}

# Before OpenEBS, which has to take their folders away.
remove_volumes() {
    [[ $PURGE == true ]] || return 0
    { grep '^persistentvolumeclaim/' "$WORK/ours" || true; } | delete_each
}

# The record goes last but for the namespaces: as long as it is there, a run that was interrupted is known as one.
remove_rest() {
    step "remove" "namespaces"
    awk -v of=" ${COMPONENTS[*]} " '!index(of, " " $3 " ")' "$WORK/ours" |
        { grep -vE "^(namespace/|configmap/$STATE_NAME )" || true; } | keep_volumes | delete_each
    printf 'configmap/%s %s\n' "$STATE_NAME" "$STATE_NAMESPACE" | delete_each
    remove_namespaces "${NAMESPACES[@]}"
}

# remove_namespaces NAME...: those of ours that hold no object worth keeping
remove_namespaces() {
    local name left="" going=()
    for name in "$@"; do
        ours namespace "$name" || continue
        if [[ $PURGE == false ]]; then
            left=$(others_in "$name") || exit
        fi
        if [[ -n $left ]]; then
            say "  kept namespace $name, with $(paste -sd' ' <<<"$left")"
        else
            going+=("$name")
        fi
    done
    [[ ${#going[@]} -eq 0 ]] ||
        k delete namespace "${going[@]}" --timeout "$TIMEOUT" --request-timeout 0 | sed 's/^/  /' >&2
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

# Everything with our label, "kind.group/name NAMESPACE COMPONENT" a line; "-" stands for none.
everything_ours() {
    local found component='{.metadata.labels.app\.kubernetes\.io/component}'
    found=$(asked "$KINDS" --all-namespaces --selector "$MANAGED" --output \
        "jsonpath={range .items[*]}{.kind},{.apiVersion},{.metadata.name},{.metadata.namespace},$component{'\n'}{end}") || exit
    awk -F, 'NF { n = split($2, v, "/"); print tolower($1) (n > 1 ? "." v[1] : "") "/" $3, $4 ? $4 : "-", $5 ? $5 : "-" }' \
        <<<"$found" | sort -u
}

# Drops the store's volumes and root key unless they are to go: a volume without its key is of no use, nor a key without
# its volume, which would be the key of the next store.
keep_volumes() {
    local kept='^persistentvolumeclaim/'
    if [[ $PURGE == true ]]; then
        kept='^$'
    elif grep -q '^persistentvolumeclaim/data-myminio-0 kubeflow ' "$WORK/ours"; then
        kept+='|^secret/myminio kubeflow '
    fi
    grep -vE "$kept" || true
}

# A definition takes all its objects with it: with --purge, those of our namespaces alone.
keep_definitions_in_use() {
    local lines kinds kind found
    lines=$(cat)
    kinds=$(sed -nE 's#^customresourcedefinition[^/]*/([^ ]+) .*#\1#p' <<<"$lines")
    for kind in $kinds; do
        found=$(asked "$kind" --all-namespaces --output 'jsonpath={range .items[*]}{.metadata.namespace}{"\n"}{end}') || exit
        if [[ $PURGE == true ]]; then
            found=$(grep -vxF "$(printf '%s\n' "${NAMESPACES[@]}")" <<<"$found") || true
        fi
        if [[ -n $found ]]; then
            say "  kept $kind: there still are some in $(sort -u <<<"$found" | paste -sd' ')"
            lines=$(grep -v "/$kind " <<<"$lines") || true
        fi
    done
    printf '%s\n' "$lines"
}

# delete_each: what stands on standard input, as in everything_ours; all of a namespace at once
delete_each() {
    local lines spaces namespace what where
    lines=$(grep .) || return 0
    mapfile -t spaces < <(cut -d' ' -f2 <<<"$lines" | sort -u)
    for namespace in "${spaces[@]}"; do
        mapfile -t what < <(awk -v of="$namespace" '$2 == of { print $1 }' <<<"$lines")
        [[ $namespace == - ]] && where=() || where=(--namespace "$namespace")
        k delete "${what[@]}" "${where[@]}" --ignore-not-found --timeout "$TIMEOUT" --request-timeout 0 | sed 's/^/  /' >&2
    done
}

left_behind() {
    local found
    found=$(everything_ours) || exit
    found=$(awk 'NF { print $1 }' <<<"$found" | paste -sd' ')
    printf '%s\n' "${found:-nothing}"
}
