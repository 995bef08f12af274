# shellcheck shell=bash disable=SC2034,SC2154
# The store: one contract, three engines. Service myminio:9000, Secret myminio (rootUser, rootPassword), bucket
# kubeflow-examples; Secret myminio-jobs has the same two names for a key that opens this bucket alone.
readonly BUCKET=kubeflow-examples

images_of_s3() {
    [[ $S3 == external ]] || engine_image
    printf '%s\n' "${TRAIN_FUNC_IMAGE:-registry/train-func:1}"
}

engine_image() {
    case $S3 in
        minio) printf '%s\n' "${S3_IMAGE:-}" ;;
        seaweedfs) printf '%s\n' "${S3_IMAGE:-$SEAWEEDFS_IMAGE}" ;;
    esac
}

store_endpoint() {
    if [[ $S3 == external ]]; then
        printf '%s\n' "${AWS_ENDPOINT_URL_S3:-}"
    else
        printf 'http://myminio.kubeflow.svc.cluster.local:9000\n'
    fi
}

region() { printf '%s\n' "${AWS_REGION:-us-east-1}"; }

# The engine with its volume, and the Job that makes the bucket and the key of jobs.
render_s3() {
    [[ $S3 != minio || -n ${S3_IMAGE:-} ]] || die "$PREREQUISITE" \
        "--s3 minio: S3_IMAGE=registry/minio:tag is expected: no public registry has one; or take --s3 seaweedfs"
    cp -r "$ROOT/infra/s3" "$WORK/"
    s3_resources >"$WORK/s3/kustomization.yaml"
    s3_kustomization | kustomized s3 kubeflow
}

s3_kustomization() {
    printf 'images:\n'
    kustomize_image train-func "${TRAIN_FUNC_IMAGE:-registry/train-func:1}"
    [[ $S3 == external ]] || kustomize_image engine "$(engine_image)"
    printf 'patches:\n'
    setup_patch
    [[ $S3 != external ]] || return 0
    headless
    keys_patch
    volume_patch
    if [[ $PROBES == false ]]; then
        no_probes StatefulSet myminio readinessProbe
    fi
}

# What is in s3/kustomization.yaml depends on the engine: written here, beside the copies.
s3_resources() {
    printf 'apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n'
    if [[ $S3 != external ]]; then
        printf -- '  - %s.yaml\n' "$S3" service
        if [[ $NETWORK_POLICIES == true ]]; then
            printf -- '  - policy.yaml\n'
        fi
    fi
    printf -- '  - setup.yaml\n'
    printf 'configMapGenerator:\n  - {name: myminio-setup, files: [setup.py], options: {disableNameSuffixHash: true}}\n'
    if [[ $S3 == seaweedfs ]]; then
        printf '  - {name: myminio-identities, files: [identities.json]}\n'
    fi
}

# A Job cannot be changed: what it does and with what is in its name.
setup_name() {
    local made_of
    made_of=$(cat "$ROOT/infra/s3/setup.py" "$ROOT/infra/s3/setup.yaml" - \
        <<<"$S3 $(store_endpoint) $(region) ${TRAIN_FUNC_IMAGE:-} $KEYS" | sha256sum)
    printf 'myminio-setup-%s\n' "${made_of:0:8}"
}

# KEYS: which ones they are. Part of the Job's name and of the engine's pod, so that other keys are set up and read
# anew, also when the run that made them was interrupted.
KEYS=""
read_keys() {
    KEYS=$(asked secrets --namespace kubeflow --selector "$MANAGED,app.kubernetes.io/component=s3" --output \
        'jsonpath={range .items[*]}{.metadata.name}-{.metadata.resourceVersion} {end}') || exit
}

setup_patch() {
    local name
    name=$(setup_name)
    cat <<YAML
  - target: {kind: Job, name: myminio-setup}
    patch: |
      - {op: replace, path: /metadata/name, value: $name}
      - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: ENGINE, value: $S3}}
      - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: ENDPOINT, value: "$(store_endpoint)"}}
      - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: BUCKET, value: $BUCKET}}
      - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: REGION, value: $(region)}}
YAML
}

keys_patch() {
    cat <<YAML
  - target: {kind: StatefulSet, name: myminio}
    patch: |
      - {op: add, path: /spec/template/metadata/annotations, value: {train-func/keys: "$KEYS"}}
YAML
}

volume_patch() {
    printf '  - target: {kind: StatefulSet, name: myminio}\n    patch: |\n'
    if [[ -n $STORAGE_CLASS ]]; then
        printf '      - {op: add, path: /spec/volumeClaimTemplates/0/spec/storageClassName, value: %s}\n' "$STORAGE_CLASS"
    else
        printf '      - {op: remove, path: /spec/volumeClaimTemplates}\n'
        printf '      - {op: add, path: /spec/template/spec/volumes/-, value: {name: data, emptyDir: {}}}\n'
    fi
}

install_s3() {
    make_keys
    read_keys
    render_s3 >"$WORK/s3.yaml"
    forget_setups
    apply s3 "$WORK/s3.yaml"
}

await_s3() {
    [[ $S3 == external ]] || ready kubeflow statefulset/myminio
    await_setup
}

# Root key and key of jobs; an external store has the given key for both, unless it lies beside and its own is there.
make_keys() {
    if [[ $S3 != external ]]; then
        keep_secret s3 kubeflow myminio rootUser "$(random 20)" rootPassword "$(random 40)"
        keep_secret s3 kubeflow myminio-jobs rootUser "$(random 20)" rootPassword "$(random 40)"
    elif [[ -n ${AWS_ACCESS_KEY_ID:-} && -n ${AWS_SECRET_ACCESS_KEY:-} ]]; then
        foreign secret myminio kubeflow ||
            exchange_secret s3 kubeflow myminio rootUser "$AWS_ACCESS_KEY_ID" rootPassword "$AWS_SECRET_ACCESS_KEY"
        exchange_secret s3 kubeflow myminio-jobs rootUser "$AWS_ACCESS_KEY_ID" rootPassword "$AWS_SECRET_ACCESS_KEY"
    fi
}

# Jobs for other settings, and one that has failed.
forget_setups() {
    [[ $DRY_RUN == false ]] || return 0
    k delete jobs --namespace kubeflow --selector "$MANAGED,app.kubernetes.io/component=s3" \
        --field-selector "metadata.name!=$(setup_name)" >/dev/null
    if [[ $(state_of_setup "$(setup_name)") == *Failed* ]]; then
        k delete job "$(setup_name)" --namespace kubeflow >/dev/null
    fi
}

state_of_setup() { # state_of_setup JOB
    asked job "$1" --namespace kubeflow --ignore-not-found --output \
        'jsonpath={.status.conditions[?(@.status=="True")].type}'
}

await_setup() {
    local end=$((SECONDS + $(seconds "$TIMEOUT"))) next=$((SECONDS + 15)) job state
    job=$(setup_name)
    until state=$(state_of_setup "$job") && [[ $state == *Complete* ]]; do
        if [[ $state == *Failed* ]]; then
            die "$FAILED" "the bucket and its key were not set up: $(said_by_setup "$job")"
        fi
        if ((SECONDS >= end)); then
            evidence kubeflow
            die "$TIMED_OUT" "the bucket was not made within $TIMEOUT; see whether pods reach $(store_endpoint): $(said_by_setup "$job")"
        fi
        if ((SECONDS >= next)); then
            say "  waiting for the bucket: $(said_by_setup "$job" | tail -n 1)"
            next=$((SECONDS + 15))
        fi
        sleep 1
    done
}

# Its last line says what was wrong, and what to do next.
said_by_setup() { # said_by_setup JOB
    local said
    said=$(k logs "job/$1" --namespace kubeflow --tail 3 2>/dev/null) || said=""
    printf '%s\n' "${said:-its pod has said nothing; kubectl --namespace kubeflow describe job $1 tells more}"
}

# By the Job that is there: its name has the image of then, not one that was exported since.
verify_s3() {
    local job given
    if [[ $S3 != external ]]; then
        k rollout status statefulset/myminio --namespace kubeflow --timeout 30s >/dev/null || return
        given=$(asked statefulset myminio --namespace kubeflow --output \
            'jsonpath={.spec.template.metadata.annotations.train-func/keys}') || return
        read_keys
        [[ $given == "$KEYS" ]] || { printf 'its keys are gone or were exchanged, and are not set up yet\n' && return 1; }
    fi
    job=$(asked jobs --namespace kubeflow --selector "$MANAGED,app.kubernetes.io/component=s3" --output \
        'jsonpath={.items[*].metadata.name}') || return
    job=${job##* }
    [[ -n $job ]] || { printf 'the bucket was not set up yet\n' && return 1; }
    [[ $(state_of_setup "$job") == *Complete* ]] || { said_by_setup "$job" && return 1; }
}

status_of_s3() {
    local found
    if [[ $S3 == external ]]; then
        printf 'external: %s\n' "$(store_endpoint)"
    else
        found=$(rollout_of kubeflow statefulset/myminio) || return
        printf '%s %s\n' "$S3" "$found"
    fi
}
