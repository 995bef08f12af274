# shellcheck shell=bash disable=SC2034,SC2154
# Keys and passwords: made once, never overwritten, never printed, never in an argument list.

# Letters and digits, so that they need no quoting anywhere.
random() { # random LENGTH
    local found=""
    while [[ ${#found} -lt $1 ]]; do
        found+=$(head -c 64 /dev/urandom | base64 | tr -dc 'A-Za-z0-9')
    done
    printf '%s' "${found:0:$1}"
}

# keep_secret COMPONENT NAMESPACE NAME KEY VALUE [KEY VALUE]...: created when there is none
keep_secret() {
    local component=$1 namespace=$2 name=$3 pairs=()
    if exists secret "$name" "$namespace"; then
        return
    fi
    shift 3
    if [[ $DRY_RUN == true ]]; then
        say "  would be created: Secret $namespace/$name"
        return
    fi
    while [[ $# -gt 0 ]]; do
        pairs+=("\"$1\": \"$(printf '%s' "$2" | base64 | tr -d '\n')\"")
        shift 2
    done
    secret_json "$component" "$namespace" "$name" "${pairs[@]}" | k create --filename - >/dev/null
    say "  created Secret $namespace/$name"
    CHANGED+=("$component")
}

secret_json() { # secret_json COMPONENT NAMESPACE NAME PAIR...
    local component=$1 namespace=$2 name=$3 IFS=,
    shift 3
    printf '{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "%s", "namespace": "%s", "labels": {%s}}, ' \
        "$name" "$namespace" \
        "\"app.kubernetes.io/managed-by\": \"train-func-install\", \"app.kubernetes.io/component\": \"$component\""
    printf '"data": {%s}}\n' "$*"
}

# exchange_secret COMPONENT NAMESPACE NAME KEY VALUE [KEY VALUE]...: as keep_secret, but other values are replaced
exchange_secret() {
    local namespace=$2 name=$3 pairs=("${@:4}") number found
    ! foreign secret "$name" "$namespace" || die "$FAILED" "the Secret $namespace/$name is there, not made by install.sh"
    for ((number = 0; number < ${#pairs[@]}; number += 2)); do
        [[ -n ${pairs[number + 1]} ]] || die "$FAILED" "the value ${pairs[number]} for the Secret $namespace/$name is empty"
        found=$(secret_value "$namespace" "$name" "${pairs[number]}") || exit
        if [[ $DRY_RUN == false && $found != "${pairs[number + 1]}" ]]; then
            k delete secret "$name" --namespace "$namespace" --ignore-not-found >/dev/null
        fi
    done
    keep_secret "$@"
}

# copy_key_of_jobs COMPONENT NAMESPACE NAME: where pods of that namespace look for it; the root key stays where none can
# mount it
copy_key_of_jobs() {
    local user password
    if [[ $DRY_RUN == true ]] && ! exists secret myminio-jobs kubeflow; then
        say "  would be created: Secret $2/$3"
        return
    fi
    user=$(secret_value kubeflow myminio-jobs rootUser) || exit
    password=$(secret_value kubeflow myminio-jobs rootPassword) || exit
    exchange_secret "$1" "$2" "$3" rootUser "$user" rootPassword "$password"
}

# secret_value NAMESPACE NAME KEY, for a pipe or a variable; never for the screen
secret_value() {
    asked secret "$2" --namespace "$1" --ignore-not-found --output "jsonpath={.data.$3}" | base64 --decode
}

# How to read them, for a user who may.
tell_credentials() {
    choose_cluster
    settle true
    something_installed
    local read="kubectl --context $CONTEXT"
    cat <<TEXT
The store's root key (Secret kubeflow/myminio; keep it to yourself):
  $read -n kubeflow get secret myminio -o jsonpath='{.data.rootUser}' | base64 -d
  $read -n kubeflow get secret myminio -o jsonpath='{.data.rootPassword}' | base64 -d
The key of jobs and notebooks, for the bucket kubeflow-examples alone (Secret train-func/myminio):
  $read -n train-func get secret myminio -o jsonpath='{.data.rootUser}' | base64 -d
  $read -n train-func get secret myminio -o jsonpath='{.data.rootPassword}' | base64 -d
$(tell_alias "$read")
$(tell_exchange "$read")
TEXT
    not_wanted jupyterhub >/dev/null || cat <<TEXT
JupyterHub (Secret $HUB_NAMESPACE/my-jupyter-login; $ONE_CIRCLE):
  $read -n $HUB_NAMESPACE get secret my-jupyter-login -o jsonpath='{.data.user_password}' | base64 -d
  $read -n $HUB_NAMESPACE get secret my-jupyter-login -o jsonpath='{.data.admin_password}' | base64 -d
TEXT
}

tell_exchange() { # tell_exchange KUBECTL
    local with=s3,jobs
    not_wanted jupyterhub >/dev/null || with+=,jupyterhub
    if [[ $S3 == external ]]; then
        printf 'Another key: with it in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY\n'
        printf '  ./install.sh install --s3 external --only %s --context %s\n' "$with" "$CONTEXT"
        return
    fi
    printf 'Another key for jobs and notebooks, or another root key (the Secret myminio): the one of now is deleted and opens\n'
    printf 'nothing any more, a new one is made; running jobs take it by themselves within minutes, from their newest\n'
    printf 'checkpoint; notebook servers have the old one until they are started again:\n'
    printf '  %s -n kubeflow delete secret myminio-jobs && ./install.sh install --only %s --context %s\n' "$1" "$with" "$CONTEXT"
}

# For mc, without the key in its arguments.
tell_alias() { # tell_alias KUBECTL
    local url=http://127.0.0.1:9000 fields='"accessKey": "{{.data.rootUser | base64decode}}", "secretKey": "{{.data.rootPassword | base64decode}}"'
    if [[ $S3 == external ]]; then
        url=$(store_endpoint)
    else
        printf 'From this machine the store is reached as long as this runs:\n  %s -n kubeflow port-forward svc/myminio 9000\n' "$1"
    fi
    printf 'mc with the key of jobs, under the alias local:\n'
    printf "  %s -n train-func get secret myminio -o go-template='%s' | mc alias import local\n" "$1" \
        "{\"url\": \"$url\", $fields, \"api\": \"s3v4\", \"path\": \"on\"}"
    printf '  mc ls local/kubeflow-examples\n'
}
