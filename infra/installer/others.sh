# shellcheck shell=bash disable=SC2034,SC2154
# Objects on the cluster that install.sh did not make and that would conflict, or be in danger.

# One operator a cluster: two would both work on every job.
check_operator() {
    local found
    found=$(asked deployments --all-namespaces --selector "control-plane=kubeflow-training-operator,$MANAGED" --output name) || exit
    if ! not_wanted operator >/dev/null && [[ -z $found ]]; then
        found=$(asked deployments --all-namespaces --selector control-plane=kubeflow-training-operator --output \
            'jsonpath={range .items[*]}{.spec.template.spec.containers[0].image} in namespace {.metadata.namespace}{end}') || exit
        if [[ -n $found ]]; then
            finding FAIL operator "there is one already, not made by install.sh: $found" \
                "--skip operator to go on with it (1.9 is expected), or remove it first"
            return
        fi
    fi
    finding ok operator "no other Training Operator is in the way"
    if ! not_wanted operator >/dev/null && foreign crd pytorchjobs.kubeflow.org; then
        finding note operator "the definition of PyTorchJobs is there already: it is brought to $OPERATOR_VERSION, its jobs stay"
    fi
    if exists crd trainjobs.trainer.kubeflow.org; then
        finding note operator "Kubeflow Trainer v2 is there too: it has jobs of its own kind, both go on side by side"
    fi
}

# A user who may create a job where privileged pods are allowed has the node.
check_namespaces() {
    local name level
    while read -r name; do
        foreign namespace "$name" || continue
        finding note namespaces "$name is there, not made by install.sh: it is used and never removed"
        [[ $name != kubeflow ]] || continue
        level=$(asked namespace "$name" --output 'jsonpath={.metadata.labels.pod-security\.kubernetes\.io/enforce}') || exit
        [[ $level =~ ^(baseline|restricted)$ ]] ||
            finding FAIL namespaces "$name allows privileged pods to every user who may create pods there: with jobs, to every notebook" \
                "kubectl --context $CONTEXT label namespace $name pod-security.kubernetes.io/enforce=restricted"
    done < <(wanted_namespaces)
}

check_store() {
    local held
    not_wanted s3 >/dev/null || check_foreign_store
    if not_wanted s3 >/dev/null && { ! not_wanted jobs || ! not_wanted jupyterhub; } >/dev/null &&
        ! exists secret myminio-jobs kubeflow; then
        finding FAIL store "there is no Secret kubeflow/myminio-jobs, the key that jobs and notebooks get a copy of" \
            "install the component s3 first, or together with them"
        return
    fi
    if [[ $S3 == external ]]; then
        if [[ -z ${AWS_ACCESS_KEY_ID:-} || -z ${AWS_SECRET_ACCESS_KEY:-} ]] && ! exists secret myminio-jobs kubeflow; then
            finding FAIL store "--s3 external without a key" "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        else
            finding ok store "external, at $(store_endpoint): tried by a pod when it is installed"
        fi
        return
    fi
    held=$(asked persistentvolumeclaim data-myminio-0 --namespace kubeflow --ignore-not-found --output \
        'jsonpath={.metadata.labels.engine}') || exit
    if [[ -n $held && $held != "$S3" ]]; then
        finding FAIL store "the volume data-myminio-0 was written by $held" "--s3 $held to find all of it again; to lose it: \
kubectl --context $CONTEXT --namespace kubeflow delete persistentvolumeclaim data-myminio-0"
    fi
}

# Taken over, a store of another owner would be cut off from its users.
check_foreign_store() {
    local found=""
    [[ $S3 == external ]] || found=$(others_named myminio kubeflow statefulsets,deployments,services,secrets) || exit
    found+=$(others_named myminio train-func secrets) || exit
    found+=$(others_named myminio-jobs "$HUB_NAMESPACE" secrets) || exit
    [[ -z $found ]] || finding FAIL store "not made by install.sh, and in its way: ${found%, }" \
        "--s3 external goes on with a store that is there; or remove these"
}

# others_named NAME NAMESPACE KINDS: "kind name namespace, " of each that install.sh did not make
others_named() {
    local found
    found=$(asked "$3" --namespace "$2" --field-selector "metadata.name=$1" --selector "${MANAGED/=/!=}" --output \
        "jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.namespace}, {end}") || exit
    printf '%s' "${found,,}"
}
