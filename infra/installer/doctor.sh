# shellcheck shell=bash disable=SC2034,SC2154
# Every prerequisite with its finding and its remedy, all in one report; nothing is changed.
NUM_FAILS=0
readonly CLOCK_SECONDS=60

# finding ok|note|FAIL WHAT FOUND [REMEDY]
finding() {
    printf '%-4s  %-16s %s\n' "$1" "$2" "$3"
    [[ -z ${4:-} ]] || printf '%22s next: %s\n' "" "$4"
    if [[ $1 == FAIL ]]; then
        NUM_FAILS=$((NUM_FAILS + 1))
    fi
}

doctor() {
    choose_cluster
    settle true
    prerequisites
    [[ $NUM_FAILS -eq 0 ]] || exit "$PREREQUISITE"
    if [[ -n $RECORD ]]; then
        check_components
        [[ $NUM_FAILS -eq 0 ]] || exit "$FAILED"
    fi
}

# Whether what was installed is ready.
check_components() {
    local component said
    for component in "${COMPONENTS[@]}"; do
        not_wanted "$component" >/dev/null && continue
        if said=$("verify_$component" 2>&1); then
            finding ok "$component" "is ready"
        else
            finding FAIL "$component" "$(tail -n 1 <<<"$said")" \
                "install.sh install brings back what is missing; kubectl --context $CONTEXT get pods,events -n $(namespace_of "$component") tells more"
        fi
    done
}

namespace_of() { # namespace_of COMPONENT
    case $1 in
        openebs) printf 'openebs\n' ;;
        jobs) printf 'train-func\n' ;;
        jupyterhub) printf '%s\n' "$HUB_NAMESPACE" ;;
        *) printf 'kubeflow\n' ;;
    esac
}

# Prints the report and counts in NUM_FAILS what is missing. Not to be called in a condition: errexit would be off in
# everything below, and a component would be rendered in part without a word.
prerequisites() {
    say "context $CONTEXT, profile $PROFILE, store $S3, volumes ${STORAGE_CLASS:-none}"
    NUM_FAILS=0
    check_tools
    check_bundle
    if check_api && check_rights && check_record; then
        check_nodes
        check_clock
        check_storage
        check_operator
        check_namespaces
        check_store
        check_published
        check_releases
        check_policies
        check_images
    else
        finding note "all the rest" "was not looked at"
    fi
}

# Decisions are taken from it: without an answer none is.
check_record() {
    [[ -z $RECORD_FAULT ]] || finding FAIL record "what was decided could not be read: $RECORD_FAULT" "try again"
    [[ -z $RECORD_FAULT ]]
}

at_least() { # at_least WANTED FOUND
    [[ $(printf '%s\n%s\n' "$1" "${2#v}" | sort -V | head -n 1) == "$1" ]]
}

check_tools() {
    local found
    found=$(kubectl version --client --output json | sed -n 's/.*"gitVersion": *"v\([^"]*\)".*/\1/p' | head -n 1) || found=""
    if at_least "$KUBECTL_AT_LEAST" "$found"; then
        finding ok kubectl "$found"
    else
        finding FAIL kubectl "$found" "install $KUBECTL_AT_LEAST or newer"
    fi
    command -v diff >/dev/null || finding FAIL diff "not installed" "install diffutils"
    command -v curl >/dev/null || finding FAIL curl "not installed" "install curl: it asks registries for images"
    if [[ -z $BUNDLE ]] && ! not_wanted operator >/dev/null && ! command -v git >/dev/null; then
        finding FAIL git "not installed" "install git: it fetches the operator's manifests; or --bundle DIR"
    fi
    if not_wanted openebs >/dev/null && not_wanted jupyterhub >/dev/null; then
        return
    fi
    found=$(helm version --template '{{.Version}}' 2>/dev/null) || found=""
    if [[ -z $found ]]; then
        finding FAIL helm "not installed" "install $HELM_AT_LEAST or newer, or --skip openebs,jupyterhub"
    elif at_least "$HELM_AT_LEAST" "$found"; then
        finding ok helm "$found"
    else
        finding FAIL helm "$found" "install $HELM_AT_LEAST or newer"
    fi
}

check_api() {
    local found
    if ! found=$(k get --raw /version 2>&1); then
        finding FAIL "API server" "$(server_of_context) does not answer: $(head -n 1 <<<"$found")" \
            "see whether the cluster runs and KUBECONFIG=${KUBECONFIG:-~/.kube/config} is its own"
        return 1
    fi
    found=$(sed -n 's/.*"gitVersion": *"v\([^"]*\)".*/\1/p' <<<"$found")
    if at_least "$SERVER_AT_LEAST" "$found"; then
        finding ok "API server" "Kubernetes $found at $(server_of_context)"
    else
        finding FAIL "API server" "Kubernetes $found" "upgrade the cluster to $SERVER_AT_LEAST or newer"
    fi
}

check_rights() {
    local what missing=()
    if k auth can-i '*' '*' --all-namespaces --quiet 2>/dev/null; then
        finding ok rights "$(user_of_context) may do everything"
        return
    fi
    for what in namespaces customresourcedefinitions clusterroles clusterrolebindings storageclasses \
        validatingwebhookconfigurations deployments statefulsets jobs services configmaps secrets networkpolicies \
        roles rolebindings serviceaccounts persistentvolumeclaims; do
        k auth can-i create "$what" --all-namespaces --quiet 2>/dev/null || missing+=("$what")
    done
    if [[ ${#missing[@]} -eq 0 ]]; then
        finding ok rights "$(user_of_context) may create everything that is needed"
    else
        finding FAIL rights "$(user_of_context) may not create ${missing[*]}" \
            "use an account with the role cluster-admin, for the time of the installation"
        return 1
    fi
}

# A worker that fits nowhere waits forever: better known now.
check_room() {
    local largest
    largest=$(asked nodes --output 'jsonpath={.items[*].status.allocatable.memory}') || exit
    largest=$(tr ' ' '\n' <<<"$largest" | while read -r one; do mebibytes "$one"; done | sort -n | tail -n 1)
    [[ ${largest:-0} -ge $(mebibytes "$WORKER_MEMORY") ]] ||
        finding note nodes "none has the $WORKER_MEMORY of memory that a worker asks for" \
            "Cluster(memory=...) or TRAIN_FUNC_MEMORY asks for less"
}

mebibytes() { # mebibytes 2Gi, 8Gi, 512Mi, 16374048Ki or a number of bytes
    case $1 in
        *Ki) printf '%s\n' $((${1%Ki} / 1024)) ;;
        *Mi) printf '%s\n' "${1%Mi}" ;;
        *Gi) printf '%s\n' $((${1%Gi} * 1024)) ;;
        "" | *[!0-9]*) printf '0\n' ;; # a node that is no machine need not tell its memory
        *) printf '%s\n' $(($1 / 1024 / 1024)) ;;
    esac
}

check_nodes() {
    local ready
    ready=$(k get nodes --output 'jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}' | grep -c True) || true
    if [[ $ready -gt 0 ]]; then
        finding ok nodes "$ready ready, with $(k get nodes --output \
            'jsonpath={range .items[*]}{.status.allocatable.cpu} CPU {.status.allocatable.memory} {end}')"
        check_room
    else
        finding FAIL nodes "none is ready" "kubectl get nodes, kubectl describe node: see what they lack"
    fi
}

# Certificates and signed requests to the store are refused when clocks differ.
check_clock() {
    local beat apart
    beat=$(k get leases --namespace kube-node-lease --output 'jsonpath={.items[*].spec.renewTime}' | tr ' ' '\n' | sort | tail -n 1) || beat=""
    [[ -n $beat ]] || return 0
    apart=$(($(date +%s) - $(date --date "$beat" +%s)))
    if [[ ${apart#-} -le $CLOCK_SECONDS ]]; then
        finding ok clocks "here and on the nodes less than $CLOCK_SECONDS s apart"
    else
        finding FAIL clocks "here and on the nodes ${apart#-} s apart" "set both by NTP: signed requests are refused"
    fi
}

check_storage() {
    local why there
    case $STORAGE in
        none) finding note volumes "none: models and notebooks are gone with their pods" "--storage openebs or existing:CLASS" ;;
        openebs)
            why=$(why_openebs)
            finding ok volumes "${why}OpenEBS makes the class $STORAGE_CLASS"
            ;;
        existing:*)
            if exists storageclass "$STORAGE_CLASS"; then
                finding ok volumes "class $STORAGE_CLASS is there"
            else
                there=$(names_of storageclasses)
                finding FAIL volumes "there is no class $STORAGE_CLASS; there are: $there" \
                    "--storage existing:ONE OF THEM, or --storage openebs"
            fi
            ;;
    esac
    check_claims
}

# Kept by uninstall. The class of a claim cannot be changed: the store would go on in the old one, the hub be refused.
check_claims() {
    local component name class option first=""
    [[ -n $STORAGE_CLASS ]] || return 0 # without volumes no claim is made
    [[ -z $RECORD ]] || first="install.sh uninstall, then install "
    while read -r component name; do
        ! not_wanted "$component" >/dev/null || continue
        class=$(asked persistentvolumeclaim "$name" --namespace "$(namespace_of "$component")" --ignore-not-found \
            --output 'jsonpath={.spec.storageClassName}') || exit
        [[ -n $class && $class != "$STORAGE_CLASS" ]] || continue
        [[ $component != s3 || $S3 != external ]] || continue
        [[ $class == "$OPENEBS_CLASS" ]] && option=openebs || option=existing:$class
        finding FAIL volumes "the volume $name that is there is of class $class, not $STORAGE_CLASS" \
            "$first--storage $option finds what it holds; or install.sh uninstall --purge, which removes it"
    done <<<"s3 data-myminio-0
jupyterhub hub-db-dir"
}

why_openebs() {
    local found
    found=$(default_class) || exit
    [[ -n $found ]] || printf 'the cluster has no default class: '
}

names_of() {
    local found
    found=$(asked "$1" --output 'jsonpath={.items[*].metadata.name}') || exit
    printf '%s' "${found:-none}"
}

# A network policy without an enforcing CNI keeps no client out.
check_policies() {
    local found
    [[ $NETWORK_POLICIES == true ]] || return 0
    found=$(asked daemonsets --all-namespaces --output 'jsonpath={.items[*].metadata.name}') || exit
    if [[ $found =~ kindnet|calico|canal|cilium|antrea|kube-router|azure-npm|weave|anetd|network-polic ]]; then
        finding ok policies "${BASH_REMATCH[0]} enforces network policies"
    else
        finding note policies "nothing that is known to enforce network policies is there: pods reach all other pods" \
            "install a policy engine if the cluster has none (on AKS: --network-policy cilium), or ask who runs the cluster"
    fi
}

# Charts and manifests that are expected and cannot be had. Installed from what is rendered here, where nothing in it
# depends on an earlier step.
check_published() {
    local component said
    for component in "${COMPONENTS[@]}"; do
        ! not_wanted "$component" >/dev/null || continue
        # In the background, not in the condition: errexit stays on in it.
        "render_$component" >"$WORK/rendered-$component.yaml" 2>"$WORK/render-fault" &
        if ! wait $!; then
            said=$(tail -n 1 "$WORK/render-fault")
            finding FAIL "$component" "${said#install.sh: }" "or --skip $component"
        fi
    done
}
