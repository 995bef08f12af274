# shellcheck shell=bash disable=SC2034,SC2154
# What was decided when the cluster was installed: kept there, so that every later command knows it.
readonly STATE_NAMESPACE=kubeflow STATE_NAME=train-func-install
readonly MANAGED=app.kubernetes.io/managed-by=train-func-install
readonly OWNER=train-func-install # of the fields in server-side apply

# recorded KEY: what was decided, or nothing; a server that does not answer is the doctor's to tell
recorded() {
    k get configmap "$STATE_NAME" --namespace "$STATE_NAMESPACE" --ignore-not-found --output "jsonpath={.data.$1}" \
        2>/dev/null || true
}

# Given options, else recorded ones, else those of the profile.
settle() {
    local online=$1 was=""
    if [[ $online == true ]]; then
        : "${PROFILE:=$(recorded profile)}"
        was=$(recorded s3)
        [[ -z $S3 || -z $was || $S3 == "$was" ]] ||
            die "$USAGE" "--s3 $S3: this cluster has $was, whose data it would not find; uninstall first, or leave --s3 out"
        refuse_other_storage "$(recorded storage)"
        : "${S3:=$was}" "${STORAGE:=$(recorded storage)}"
        : "${TRAIN_FUNC_IMAGE:=$(recorded image)}" "${S3_IMAGE:=$(recorded s3_image)}"
        : "${AWS_ENDPOINT_URL_S3:=$(recorded endpoint)}" "${AWS_REGION:=$(recorded region)}"
        : "${IMAGE_REGISTRY:=$(recorded image_registry)}"
    fi
    use_image_registry
    : "${PROFILE:=generic}"
    # shellcheck source=/dev/null
    source "$ROOT/infra/profiles/$PROFILE.env"
    : "${S3:=$PROFILE_S3}" "${STORAGE:=$PROFILE_STORAGE}"
    settle_storage "$online"
}

# Every image of versions.env from there, under its own path.
use_image_registry() {
    local name
    [[ -n ${IMAGE_REGISTRY:-} ]] || return 0
    while read -r name; do
        printf -v "$name" '%s/%s' "${IMAGE_REGISTRY%/}" "${!name#*/}"
    done < <(sed -n 's/^\([A-Z_]*_IMAGE\)=.*/\1/p' "$ROOT/infra/versions.env")
}

# The class of a volume cannot be changed: another one would begin without what the store and the notebooks hold.
refuse_other_storage() { # refuse_other_storage RECORDED
    [[ -z $1 || $STORAGE =~ ^(|auto)$ || $STORAGE == "$1" ]] ||
        die "$USAGE" "--storage $STORAGE: this cluster has $1, and volumes stay in their class; uninstall first, or leave --storage out"
}

# STORAGE_CLASS: what volumes ask for; empty when nothing is to last.
settle_storage() {
    local found=""
    if [[ $STORAGE == auto ]]; then
        if [[ $1 == true ]]; then
            found=$(default_class)
        fi
        # Found again after OpenEBS was made the default by the first run.
        if [[ -n $found && $found != "$OPENEBS_CLASS" ]]; then
            STORAGE=existing:$found
        else
            STORAGE=openebs
        fi
    fi
    case $STORAGE in
        openebs) STORAGE_CLASS=$OPENEBS_CLASS ;;
        existing:*) STORAGE_CLASS=${STORAGE#existing:} ;;
        none) STORAGE_CLASS="" ;;
    esac
}

render_state() {
    cat <<YAML
apiVersion: v1
kind: ConfigMap
metadata:
  name: $STATE_NAME
  namespace: $STATE_NAMESPACE
  labels:
    app.kubernetes.io/managed-by: train-func-install
data:
  profile: "$PROFILE"
  s3: "$S3"
  storage: "$STORAGE"
  image: "${TRAIN_FUNC_IMAGE:-}"
  s3_image: "${S3_IMAGE:-}"
  image_registry: "${IMAGE_REGISTRY:-}"
  endpoint: "$([[ $S3 != external ]] || printf '%s' "${AWS_ENDPOINT_URL_S3:-}")"
  region: "$(region)"
YAML
}
