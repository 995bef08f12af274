# shellcheck shell=bash disable=SC2034,SC2154
# The namespace train-func, where jobs run, with a key for the bucket and nothing else that is secret.

images_of_jobs() { :; }

render_jobs() {
    cp -r "$ROOT/infra/jobs" "$WORK/"
    cp "$ROOT/infra/rbac.yaml" "$WORK/jobs/"
    if [[ $NETWORK_POLICIES == true ]]; then
        sed -i '$a\  - policy.yaml' "$WORK/jobs/kustomization.yaml"
    fi
    # An external store has an address of its own: no Service of ours names it.
    if [[ $S3 == external ]]; then
        sed -i '/store.yaml/d' "$WORK/jobs/kustomization.yaml"
    fi
    kustomized jobs train-func </dev/null
}

install_jobs() {
    apply jobs "$WORK/rendered-jobs.yaml"
    copy_key_of_jobs jobs train-func myminio # the name that every job looks for
}

verify_jobs() {
    exists secret myminio train-func || { printf 'the Secret train-func/myminio is missing\n' && return 1; }
}

status_of_jobs() {
    if exists rolebinding train-func-notebook train-func; then
        printf 'namespace train-func, account notebook\n'
    else
        printf 'missing\n'
    fi
}
