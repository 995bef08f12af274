# shellcheck shell=bash disable=SC2034,SC2154
# Which cluster is meant, and how it is asked: never guessed, never without a time limit.
readonly REQUEST_LIMIT=30s

k() { kubectl --context "$CONTEXT" --request-timeout "$REQUEST_LIMIT" "$@"; }
h() { helm --kube-context "$CONTEXT" "$@"; }

# The context, or why there is none.
choose_cluster() {
    local contexts said
    kubectl_wanted
    said=$(kubectl config get-contexts --output name 2>"$WORK/kubeconfig-fault") ||
        die "$PREREQUISITE" "the kubeconfig cannot be read: $(tail -n 1 "$WORK/kubeconfig-fault")"
    mapfile -t contexts < <(grep . <<<"$said")
    [[ ${#contexts[@]} -gt 0 ]] || die "$PREREQUISITE" "$(which_kubeconfig) names no cluster; let KUBECONFIG name the file of one"
    if [[ -z $CONTEXT ]]; then
        [[ ${#contexts[@]} -eq 1 ]] ||
            die "$USAGE" "the kubeconfig has several contexts; name one: --context $(printf '%s ' "${contexts[@]}")"
        CONTEXT=${contexts[0]}
    fi
    one_of --context "$CONTEXT" "${contexts[@]}"
    [[ ${#FAULTS[@]} -eq 0 ]] || die "$USAGE" "${FAULTS[0]}"
}

kubectl_wanted() {
    command -v kubectl >/dev/null || die "$PREREQUISITE" "kubectl is not installed; $KUBECTL_AT_LEAST or newer is expected"
}

which_kubeconfig() {
    if [[ -z ${KUBECONFIG:-} ]]; then
        printf 'KUBECONFIG is not set, and ~/.kube/config'
    elif [[ $KUBECONFIG != *:* && ! -e $KUBECONFIG ]]; then
        printf 'there is no file KUBECONFIG=%s, which' "$KUBECONFIG"
    else
        printf 'KUBECONFIG=%s' "$KUBECONFIG"
    fi
}

server_of_context() {
    kubectl config view --minify --context "$CONTEXT" --output 'jsonpath={.clusters[0].cluster.server}'
}

user_of_context() {
    kubectl config view --minify --context "$CONTEXT" --output 'jsonpath={.contexts[0].context.user}'
}

# confirm WHAT: goes on only when the user agrees to do that to this cluster
confirm() {
    local answer
    say "$1 on context $CONTEXT, server $(server_of_context), user $(user_of_context)"
    if [[ $YES == true || $DRY_RUN == true ]]; then
        return
    fi
    [[ -t 0 ]] || die "$USAGE" "there is no terminal to ask for agreement; --yes agrees"
    read -rp "go on? [y/N] " answer
    [[ $answer == [yY]* ]] || die "$USAGE" "not agreed; nothing was changed"
}

# asked GET_ARGUMENTS...: what `kubectl get` answers. No answer is not an empty one: it ends the run, in a subshell the
# subshell, so that callers write found=$(asked ...) || exit.
asked() {
    k get "$@" || die "$FAILED" "context $CONTEXT did not tell about $1; what kubectl said stands above"
}

# exists KIND NAME [NAMESPACE]
exists() {
    local found
    found=$(asked "$1" "$2" ${3:+--namespace "$3"} --ignore-not-found --output name) || exit
    [[ -n $found ]]
}

# ours KIND NAME [NAMESPACE]: whether install.sh made it
ours() {
    local found
    found=$(asked "$1" ${3:+--namespace "$3"} --selector "$MANAGED" --field-selector "metadata.name=$2" --output name) || exit
    [[ -n $found ]]
}

# foreign KIND NAME [NAMESPACE]: whether it exists and is not managed by install.sh
foreign() {
    local found
    found=$(asked "$1" "$2" ${3:+--namespace "$3"} --ignore-not-found --output \
        'jsonpath={.metadata.name} {.metadata.labels.app\.kubernetes\.io/managed-by}') || exit
    [[ -n $found && ${found#* } != "$OWNER" ]]
}

# The storage class marked as default, if there is one.
default_class() {
    local field='.metadata.annotations.storageclass\.kubernetes\.io/is-default-class'
    asked storageclasses --output "jsonpath={range .items[?($field==\"true\")]}{.metadata.name}{'\n'}{end}" | head -n 1
}

# Where the API server really listens, as network policies see it: "address port" a line.
api_addresses() {
    local found
    found=$(asked endpointslices --namespace default --selector kubernetes.io/service-name=kubernetes --output \
        'jsonpath={range .items[*]}{range .endpoints[*]}{.addresses[0]} {end}{.ports[0].port}{"\n"}{end}') || exit
    [[ -n $found ]] || die "$FAILED" "the Service default/kubernetes has no endpoints: notebooks could not reach the API server"
    awk '{ for (i = 1; i < NF; i++) print $i, $NF }' <<<"$found"
}
