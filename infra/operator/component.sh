# shellcheck shell=bash disable=SC2034,SC2154
# The Training Operator: its published manifests, without their Namespace, with a security context and resources.

images_of_operator() { printf '%s\n' "$OPERATOR_IMAGE"; }

not_needed_operator() { :; }

render_operator() {
    local found
    found=$(operator_manifests) || return
    rm -rf "$WORK/operator-published"
    cp -r "$found" "$WORK/operator-published"
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

install_operator() {
    render_operator >"$WORK/operator.yaml"
    apply operator "$WORK/operator.yaml"
    ready kubeflow deployment/training-operator
    [[ $DRY_RUN == true ]] || within "$TIMEOUT" "the operator accepts a PyTorchJob" accepts_a_job
}

# Its webhook answers only some seconds after its pod is ready.
accepts_a_job() {
    k create --dry-run=server --namespace kubeflow --filename "$ROOT/infra/operator/probe/job.yaml"
}

verify_operator() { accepts_a_job >/dev/null; }

status_of_operator() { rollout_of kubeflow deployment/training-operator; }
