# shellcheck shell=bash disable=SC2034,SC2154
# The namespace train-func, where jobs run, with a key for the bucket and nothing else that is secret.

images_of_jobs() { :; }

not_needed_jobs() { :; }

render_jobs() {
    cp -r "$ROOT/infra/jobs" "$WORK/"
    cp "$ROOT/infra/rbac.yaml" "$WORK/jobs/"
    if [[ $NETWORK_POLICIES == true ]]; then
        sed -i '$a\  - policy.yaml' "$WORK/jobs/kustomization.yaml"
    fi
    # The store may be anybody's: then its name is not ours to give.
    if [[ $S3 == external ]]; then
        sed -i '/store.yaml/d' "$WORK/jobs/kustomization.yaml"
    fi
    kustomized jobs train-func </dev/null
}

install_jobs() {
    render_jobs >"$WORK/jobs.yaml"
    apply jobs "$WORK/jobs.yaml"
    # Under the name that every job looks for; the root key stays where no job can mount it.
    if [[ $DRY_RUN == true ]] && ! exists secret myminio-jobs kubeflow; then
        say "  would be created: Secret train-func/myminio"
        return
    fi
    exists secret myminio-jobs kubeflow ||
        die "$FAILED" "there is no Secret kubeflow/myminio-jobs, the key that jobs get a copy of; install the component s3 first"
    local user password
    user=$(secret_value kubeflow myminio-jobs rootUser) || exit
    password=$(secret_value kubeflow myminio-jobs rootPassword) || exit
    exchange_secret jobs train-func myminio rootUser "$user" rootPassword "$password"
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
