# shellcheck shell=bash disable=SC2034,SC2154
# The steps of install and upgrade, in their order; each can be repeated, and goes on where it is needed.
SKIPPED=()

install_all() {
    choose_cluster
    settle true
    if [[ $COMMAND == upgrade && -z $RECORD$RECORD_FAULT ]]; then
        die "$USAGE" "nothing is installed on context $CONTEXT; install.sh install does that"
    fi
    prerequisites
    [[ $NUM_FAILS -eq 0 ]] || die "$PREREQUISITE" "nothing was changed; fix what is marked FAIL above and try again"
    confirm "$COMMAND, profile $PROFILE, store $S3, volumes ${STORAGE_CLASS:-none}"
    local number=0 component why total=$((${#COMPONENTS[@]} + 2))
    step "$((++number))/$total" namespaces
    install_namespaces
    for component in "${COMPONENTS[@]}"; do
        step "$((++number))/$total" "$component"
        if why=$(not_wanted "$component"); then
            say "  skipped: $why"
            SKIPPED+=("$component")
        else
            "install_$component"
        fi
    done
    step "$total/$total" verify
    verify
    summary
}

# not_wanted COMPONENT: says why it is left out; fails when it is expected
not_wanted() {
    if ! wanted "$1"; then
        if [[ $REMEMBERED == true && " ${SKIP[*]} " != *" $1 "* ]]; then
            printf 'left out when this was installed; --only %s adds it\n' "$1"
        else
            printf 'by --only or --skip\n'
        fi
        return
    fi
    [[ $1 == openebs && $STORAGE != openebs ]] && printf 'volumes come from %s\n' "${STORAGE_CLASS:-nowhere}"
}

install_namespaces() {
    render_namespaces >"$WORK/namespaces.yaml"
    apply namespaces "$WORK/namespaces.yaml"
    if [[ $DRY_RUN == false ]] || exists namespace "$STATE_NAMESPACE"; then
        remember
    fi
}

# Those that do not exist yet, or that install.sh made.
render_namespaces() {
    local name
    while read -r name; do
        if ! foreign namespace "$name"; then
            printf -- '---\n'
            namespace_yaml "$name" restricted
        fi
    done < <(wanted_namespaces)
}

# That of notebooks only where there is to be a hub in it.
wanted_namespaces() {
    printf '%s\n' kubeflow train-func
    not_wanted jupyterhub >/dev/null || printf '%s\n' "$HUB_NAMESPACE"
}

# Waits here for what takes its time, so that the images of one component are pulled while the next is brought.
verify() {
    local component how
    [[ $DRY_RUN == false ]] || return 0
    for component in "${COMPONENTS[@]}"; do
        if ! not_wanted "$component" >/dev/null; then
            how=await_$component
            declare -F "$how" >/dev/null || how=verify_$component
            "$how" >&2
            say "  $component is ready"
        fi
    done
}

summary() {
    [[ $DRY_RUN == false ]] || return 0
    if [[ ${#CHANGED[@]} -eq 0 ]]; then
        say "everything was there already: nothing was changed"
    else
        say "changed: $(printf '%s\n' "${CHANGED[@]}" | sort -u | paste -sd' ')"
    fi
    [[ ${#SKIPPED[@]} -eq 0 ]] || say "skipped: ${SKIPPED[*]}"
    say "next: install.sh status tells how to reach it, install.sh credentials how to read the keys"
}

# What runs, and how to reach it.
status() {
    local component said unwell=false
    choose_cluster
    settle true
    something_installed
    printf 'context %s: profile %s, store %s, volumes %s\n' "$CONTEXT" "$PROFILE" "$S3" "${STORAGE_CLASS:-none}"
    for component in "${COMPONENTS[@]}"; do
        said=$(not_wanted "$component" || "status_of_$component") || exit
        printf '%-12s%s\n' "$component" "$said"
        [[ ! $said =~ (^| )(missing|0/) ]] || unwell=true
    done
    [[ $S3 == external ]] || printf 'the store from here:    %s\n' "kubectl --context $CONTEXT -n kubeflow port-forward svc/myminio 9000"
    not_wanted jupyterhub >/dev/null || tell_hub
    tell_submission
    [[ $unwell == false ]] ||
        die "$FAILED" "something is missing or not ready; install.sh install brings it back, install.sh doctor tells more"
}

something_installed() {
    record_wanted
    [[ -n $RECORD ]] || die "$PREREQUISITE" "nothing is installed on context $CONTEXT; install.sh install does that"
}

# What a submission from this machine needs to know.
tell_submission() {
    local here=http://127.0.0.1:9000
    [[ $S3 != external ]] || here=$(store_endpoint)
    cat <<TEXT
to submit from here, with the key of jobs (install.sh credentials tells how to read it):
  read -rp 'access key: ' AWS_ACCESS_KEY_ID && read -rsp 'secret key: ' AWS_SECRET_ACCESS_KEY
  export AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_ENDPOINT_URL_S3=$here
  export TRAIN_FUNC_S3_ENDPOINT=$(store_endpoint) TRAIN_FUNC_STORE=s3://$BUCKET
  export TRAIN_FUNC_NAMESPACE=train-func TRAIN_FUNC_IMAGE=${TRAIN_FUNC_IMAGE:-}
  export TRAIN_FUNC_CPU=$WORKER_CPU TRAIN_FUNC_MEMORY=$WORKER_MEMORY   # of each worker
TEXT
}

# rollout_of NAMESPACE KIND/NAME: in a word or two
rollout_of() {
    local found
    found=$(asked "$2" --namespace "$1" --ignore-not-found --output \
        'jsonpath=0{.status.readyReplicas}/{.spec.replicas} {.spec.template.spec.containers[0].image}') || exit
    printf '%s\n' "$(sed -E 's#^0([0-9])#\1#' <<<"${found:-missing}")"
}
