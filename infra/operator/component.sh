# shellcheck shell=bash disable=SC2034,SC2154
# The Training Operator: its published manifests, without their Namespace, with a security context and resources.

images_of_operator() { printf '%s\n' "$OPERATOR_IMAGE"; }

render_operator() {
    render_definitions >"$WORK/definitions.yaml"
    render_rest_of_operator >"$WORK/operator.yaml"
    cat "$WORK/definitions.yaml"
    printf -- '---\n'
    cat "$WORK/operator.yaml"
}

# Apart from the rest: kustomize takes seconds for their 3.7 MB, and nothing of them is changed but the labels.
render_definitions() {
    local found
    found=$(operator_manifests)
    awk '
        FNR == 1 && NR > 1 { print "---" }
        /^---$/ { next }
        { print }
        /^metadata:$/ {
            print "  labels:\n    app.kubernetes.io/component: operator"
            print "    app.kubernetes.io/managed-by: train-func-install"
        }' "$found"/base/crds/kubeflow.org_*.yaml
}

render_rest_of_operator() {
    local found
    found=$(operator_manifests)
    rm -rf "$WORK/operator-published"
    cp -RL "$found" "$WORK/operator-published" # a bundle may be a link to what is not ours to change
    chmod -R u+w "$WORK/operator-published"
    sed -i '/crds$/d' "$WORK/operator-published/base/kustomization.yaml"
    mkdir -p "$WORK/operator"
    cp "$ROOT"/infra/operator/*.yaml "$WORK/operator/"
    {
        printf 'images:\n'
        kustomize_image ghcr.io/kubeflow/training-v1/training-operator "$OPERATOR_IMAGE"
        printf 'patches:\n'
        headless
        if [[ $WEBHOOKS == false ]]; then
            no_webhook
        fi
        if [[ $PROBES == false ]]; then
            no_probes Deployment training-operator livenessProbe readinessProbe
        fi
    } | kustomized operator kubeflow
}

# Where the API server cannot call it, every PyTorchJob would be refused; the operator itself judges jobs again anyway.
no_webhook() {
    cat <<'YAML'
  - target: {kind: ValidatingWebhookConfiguration}
    patch: |
      $patch: delete
      apiVersion: admissionregistration.k8s.io/v1
      kind: ValidatingWebhookConfiguration
      metadata: {name: validator.training-operator.kubeflow.org}
YAML
}

install_operator() { # as check_published has rendered it
    install_definitions
    apply operator "$WORK/operator.yaml"
}

await_operator() {
    ready kubeflow deployment/training-operator
    within "$TIMEOUT" "the operator accepts a PyTorchJob" accepts_a_job
}

# Looked at in detail only when they are not as they were left: to compare 3.7 MB field by field takes seconds.
install_definitions() {
    local found
    found=$(definitions) || exit
    if [[ -z $found ]]; then
        bring operator "$WORK/definitions.yaml"
    elif [[ $(sum_of_definitions "$found") == "$(recorded definitions)" ]]; then
        return
    else
        apply operator "$WORK/definitions.yaml"
    fi
    [[ $DRY_RUN == false ]] || return 0
    found=$(definitions) || exit
    DEFINITIONS=$(sum_of_definitions "$found")
    remember
}

# Our definitions in the cluster, each with what changes whenever it is changed: its generation counts changes of its
# spec.
definitions() {
    local each='{.metadata.uid} {.metadata.generation} {.metadata.labels} {.metadata.annotations}'
    asked customresourcedefinitions --selector "$MANAGED,app.kubernetes.io/component=operator" --output \
        "jsonpath={range .items[*]}$each{'\n'}{end}"
}

# sum_of_definitions FOUND: of those, and of what they were made of
sum_of_definitions() { cat "$WORK/definitions.yaml" - <<<"$1" | sha256sum | cut -c1-16; }

# Its webhook answers only some seconds after its pod is ready.
accepts_a_job() {
    k create --dry-run=server --namespace kubeflow --filename "$ROOT/infra/operator/probe/job.yaml"
}

verify_operator() { accepts_a_job >/dev/null; }

status_of_operator() { rollout_of kubeflow deployment/training-operator; }
