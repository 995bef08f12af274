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
    prerequisites || exit "$PREREQUISITE"
    if [[ -n $(recorded profile) ]]; then
        check_components
        [[ $NUM_FAILS -eq 0 ]] || exit "$FAILED"
    fi
}

# Whether what was installed is well.
check_components() {
    local component said
    for component in "${COMPONENTS[@]}"; do
        not_wanted "$component" >/dev/null && continue
        if said=$("verify_$component" 2>&1); then
            finding ok "$component" "is well"
        else
            finding FAIL "$component" "$(tail -n 1 <<<"$said")" \
                "install.sh install brings back what is missing; kubectl --context $CONTEXT get pods,events -n kubeflow tells more"
        fi
    done
}

# Prints the report; fails when something is missing.
prerequisites() {
    say "context $CONTEXT, profile $PROFILE, store $S3, volumes ${STORAGE_CLASS:-none}"
    NUM_FAILS=0
    check_tools
    check_bundle
    if check_api; then
        check_rights
        check_nodes
        check_clock
        check_storage
        check_operator
        check_namespaces
        check_store
        check_published
        check_releases
        check_images
    fi
    [[ $NUM_FAILS -eq 0 ]]
}

at_least() { # at_least WANTED FOUND
    [[ $(printf '%s\n%s\n' "$1" "${2#v}" | sort -V | head -n 1) == "$1" ]]
}

check_tools() {
    local found
    found=$(kubectl version --client --output json | sed -n 's/.*"gitVersion": *"v\([^"]*\)".*/\1/p' | head -n 1)
    if at_least "$KUBECTL_AT_LEAST" "$found"; then
        finding ok kubectl "$found"
    else
        finding FAIL kubectl "$found" "install $KUBECTL_AT_LEAST or newer"
    fi
    command -v diff >/dev/null || finding FAIL diff "not installed" "install diffutils"
    charts_wanted || return 0
    found=$(helm version --template '{{.Version}}' 2>/dev/null) || found=""
    if [[ -z $found ]]; then
        finding FAIL helm "not installed" "install $HELM_AT_LEAST or newer, or --skip openebs,jupyterhub"
    elif at_least "$HELM_AT_LEAST" "$found"; then
        finding ok helm "$found"
    else
        finding FAIL helm "$found" "install $HELM_AT_LEAST or newer"
    fi
}

charts_wanted() {
    local component
    for component in openebs jupyterhub; do
        if ! not_wanted "$component" >/dev/null; then
            return 0
        fi
    done
    return 1
}

check_api() {
    local found
    if ! found=$(k get --raw /version 2>&1); then
        finding FAIL "API server" "$(server_of_context) does not answer: $(head -n 1 <<<"$found")" \
            "see whether the cluster runs and KUBECONFIG=${KUBECONFIG:-~/.kube/config} is its own"
        return 1
    fi
    found=$(sed -n 's/.*"gitVersion": *"v\([^"]*\)".*/\1/p' <<<"$found")
    if at_least "$KUBERNETES_AT_LEAST" "$found"; then
        finding ok "API server" "Kubernetes $found at $(server_of_context)"
    else
        finding FAIL "API server" "Kubernetes $found" "upgrade the cluster to $KUBERNETES_AT_LEAST or newer"
    fi
}

check_rights() {
    local what missing=()
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
    fi
}

check_nodes() {
    local ready
    ready=$(k get nodes --output 'jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}' | grep -c True) || true
    if [[ $ready -gt 0 ]]; then
        finding ok nodes "$ready ready, with $(k get nodes --output \
            'jsonpath={range .items[*]}{.status.allocatable.cpu} CPU {.status.allocatable.memory} {end}')"
    else
        finding FAIL nodes "none is ready" "kubectl get nodes, kubectl describe node: see what they lack"
    fi
}

# Certificates and signed requests to the store are refused when clocks differ.
check_clock() {
    local beat apart
    beat=$(k get leases --namespace kube-node-lease --output 'jsonpath={.items[*].spec.renewTime}' | tr ' ' '\n' | sort | tail -n 1)
    [[ -n $beat ]] || return 0
    apart=$(($(date +%s) - $(date --date "$beat" +%s)))
    if [[ ${apart#-} -le $CLOCK_SECONDS ]]; then
        finding ok clocks "here and on the nodes less than $CLOCK_SECONDS s apart"
    else
        finding FAIL clocks "here and on the nodes ${apart#-} s apart" "set both by NTP: signed requests are refused"
    fi
}

check_storage() {
    case $STORAGE in
        none) finding note volumes "none: models and notebooks are gone with their pods" "--storage openebs or existing:CLASS" ;;
        openebs) finding ok volumes "$(why_openebs)OpenEBS makes the class $STORAGE_CLASS" ;;
        existing:*)
            if exists storageclass "$STORAGE_CLASS"; then
                finding ok volumes "class $STORAGE_CLASS is there"
            else
                finding FAIL volumes "there is no class $STORAGE_CLASS; there are: $(names_of storageclasses)" \
                    "--storage existing:ONE OF THEM, or --storage openebs"
            fi
            ;;
    esac
}

why_openebs() {
    [[ -n $(default_class) ]] || printf 'the cluster has no default class: '
}

names_of() {
    local found
    found=$(k get "$1" --output 'jsonpath={.items[*].metadata.name}' 2>/dev/null)
    printf '%s' "${found:-none}"
}

# One operator a cluster: two would both work on every job.
check_operator() {
    local found
    found=$(k get deployments --all-namespaces --selector "control-plane=kubeflow-training-operator,$MANAGED" --output name)
    if ! not_wanted operator >/dev/null && [[ -z $found ]]; then
        found=$(k get deployments --all-namespaces --selector control-plane=kubeflow-training-operator --output \
            'jsonpath={range .items[*]}{.spec.template.spec.containers[0].image} in namespace {.metadata.namespace}{end}')
        if [[ -n $found ]]; then
            finding FAIL operator "there is one already, not made by install.sh: $found" \
                "--skip operator to go on with it (1.9 is wanted), or remove it first"
            return
        fi
    fi
    finding ok operator "no other Training Operator is in the way"
    if exists crd trainjobs.trainer.kubeflow.org; then
        finding note operator "Kubeflow Trainer v2 is there too: it has jobs of its own kind, both go on side by side"
    fi
}

check_namespaces() {
    local name
    for name in kubeflow train-func; do
        if exists namespace "$name" && ! ours namespace "$name"; then
            finding note namespaces "$name is there, not made by install.sh: it is used and never removed"
        fi
    done
}

check_store() {
    local held
    case $S3 in
        external)
            if [[ -z ${AWS_ENDPOINT_URL_S3:-} ]]; then
                finding FAIL store "--s3 external without an endpoint" \
                    "set AWS_ENDPOINT_URL_S3, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            elif [[ -z ${AWS_ACCESS_KEY_ID:-} || -z ${AWS_SECRET_ACCESS_KEY:-} ]] && ! exists secret myminio kubeflow; then
                finding FAIL store "--s3 external without a key" "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            fi
            return
            ;;
        versitygw) finding note store "VersityGW on a folder: two writers at once can both win a conditional put" ;;
    esac
    held=$(k get persistentvolumeclaim data-myminio-0 --namespace kubeflow --ignore-not-found --output 'jsonpath={.metadata.labels.engine}')
    if [[ -n $held && $held != "$S3" ]]; then
        finding FAIL store "the volume data-myminio-0 was written by $held" "--s3 $held to find all of it again; to lose it: \
kubectl --context $CONTEXT --namespace kubeflow delete persistentvolumeclaim data-myminio-0"
    fi
}

# Charts and manifests that are wanted and cannot be had.
check_published() {
    local component said
    for component in "${COMPONENTS[@]}"; do
        if ! not_wanted "$component" >/dev/null && ! said=$("render_$component" 2>&1 >/dev/null); then
            finding FAIL "$component" "$(tail -n 1 <<<"$said")" "or --skip $component"
        fi
    done
}

# An image counts as there when a node has it, or its registry answers from here.
check_images() {
    local image component present
    if [[ -z ${TRAIN_FUNC_IMAGE:-} ]]; then
        finding FAIL images "TRAIN_FUNC_IMAGE is not set: the image of notebooks and workers" \
            "make image IMAGE=registry/train-func:1, push it, and set TRAIN_FUNC_IMAGE=registry/train-func:1"
    fi
    present=$(k get nodes --output 'jsonpath={.items[*].status.images[*].names[*]}' | tr ' ' '\n')
    for component in "${COMPONENTS[@]}"; do
        not_wanted "$component" >/dev/null || "images_of_$component"
    done | sort -u | while read -r image; do
        image_finding "$image" "$present"
    done >"$WORK/images"
    cat "$WORK/images"
    NUM_FAILS=$((NUM_FAILS + $(grep -c ^FAIL "$WORK/images" || true)))
}

image_finding() { # image_finding IMAGE PRESENT
    local image=$1 registry answer
    if grep -qxFe "$image" -e "docker.io/$image" -e "docker.io/library/$image" <<<"$2"; then
        finding ok image "$image is on a node"
        return
    fi
    registry=$(registry_of "$image")
    answer=$(asked_for "$registry" "$image")
    case $answer in
        000) finding FAIL image "$image: $registry does not answer, and no node has the image" \
            "see whether the name is right, or push it where the nodes pull from, and see IMAGE_REGISTRY in install.sh --help" ;;
        404) finding FAIL image "$image is not in $registry, which answers" "push it, or mend its name" ;;
        *) finding ok image "$image: $registry answers" ;;
    esac
}

registry_of() {
    local first=${1%%/*}
    case $first in
        docker.io) printf 'registry-1.docker.io\n' ;;
        *.* | *:* | localhost) printf '%s\n' "$first" ;;
        *) printf 'registry-1.docker.io\n' ;;
    esac
}

# The status of its manifest, 000 when nobody answers; of images that want a login only the nodes know more.
asked_for() { # asked_for REGISTRY IMAGE
    local path tag answer scheme
    path=${2#docker.io/}
    path=${path#"$1"/}
    case $path in
        *@*) tag=${path#*@} path=${path%@*} ;;
        *) tag=${path##*:} path=${path%:*} ;;
    esac
    for scheme in https http; do
        answer=$(curl --silent --head --output /dev/null --max-time 10 --write-out '%{http_code}' \
            --header 'Accept: application/vnd.oci.image.index.v1+json' --header 'Accept: application/vnd.oci.image.manifest.v1+json' \
            --header 'Accept: application/vnd.docker.distribution.manifest.list.v2+json' \
            --header 'Accept: application/vnd.docker.distribution.manifest.v2+json' \
            "$scheme://$1/v2/$path/manifests/$tag") || true
        [[ $answer == 000 ]] || break
    done
    printf '%s\n' "$answer"
}
