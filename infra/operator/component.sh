# shellcheck shell=bash disable=SC2034,SC2154
# The Training Operator for PyTorchJobs alone: its published manifests, without their Namespace, with a security context
# and resources.

images_of_operator() { printf '%s\n' "$OPERATOR_IMAGE"; }

render_operator() {
    local found
    found=$(operator_manifests)
    rm -rf "$WORK/operator-published"
    cp -RL "$found" "$WORK/operator-published" # a bundle may be a link to what is not ours to change
    chmod -R u+w "$WORK/operator-published"
    # The definitions of other kinds may be those of another operator, which stores another version of them.
    sed -i '/_pytorchjobs/!{/kubeflow\.org_/d}' "$WORK/operator-published/base/crds/kustomization.yaml"
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

install_operator() { apply operator "$WORK/rendered-operator.yaml"; } # as check_published has rendered it

await_operator() {
    ready kubeflow deployment/training-operator
    within "$TIMEOUT" "the operator accepts a PyTorchJob" accepts_a_job
}

# Its webhook answers only some seconds after its pod is ready.
accepts_a_job() {
    k create --dry-run=server --namespace kubeflow --filename "$ROOT/infra/operator/probe/job.yaml"
}

verify_operator() { accepts_a_job >/dev/null; }

status_of_operator() { rollout_of kubeflow deployment/training-operator; }
