# shellcheck shell=bash disable=SC2034,SC2154
# What was decided when the cluster was installed: kept there, so that every later command knows it.
readonly STATE_NAMESPACE=kubeflow STATE_NAME=train-func-install
readonly MANAGED=app.kubernetes.io/managed-by=train-func-install
readonly OWNER=train-func-install # of the fields in server-side apply

RECORD="" RECORD_FAULT="" REMEMBERED=false

# RECORD: what was decided, KEY=VALUE a line; RECORD_FAULT: why it could not be read
read_record() {
    # shellcheck disable=SC2016
    local each='{{range $key, $value := .data}}{{$key}}={{$value}}{{"\n"}}{{end}}'
    RECORD=$(k get configmap "$STATE_NAME" --namespace "$STATE_NAMESPACE" --ignore-not-found --output "go-template=$each" \
        2>"$WORK/record-fault") || RECORD_FAULT=$(tail -n 1 "$WORK/record-fault" | grep . || echo "no answer")
}

# recorded KEY: what was decided, or nothing
recorded() { sed -n "s/^$1=//p" <<<"$RECORD"; }

# Commands that cannot go on without it; the others have it in their report.
record_wanted() {
    [[ -z $RECORD_FAULT ]] || die "$PREREQUISITE" "context $CONTEXT did not tell what was decided: $RECORD_FAULT"
}

# Given options, else recorded ones, else those of the profile.
settle() {
    local online=$1
    if [[ $online == true ]]; then
        read_record
        refuse_other_store
        refuse_other_storage "$(recorded storage)"
        settle_recorded
    fi
    use_image_registry
    : "${PROFILE:=generic}"
    # shellcheck source=/dev/null
    source "$ROOT/infra/profiles/$PROFILE.env"
    : "${S3:=$PROFILE_S3}" "${STORAGE:=$PROFILE_STORAGE}"
    settle_storage "$online"
    refuse_untagged TRAIN_FUNC_IMAGE "${TRAIN_FUNC_IMAGE:-}"
    refuse_untagged S3_IMAGE "${S3_IMAGE:-}"
    [[ $S3 != external ]] || refuse_unreachable
}

# Pods have to find the store there, too.
refuse_unreachable() {
    local given=${AWS_ENDPOINT_URL_S3:-}
    [[ $given =~ ^https?://[^/:]+(:[0-9]+)?/?$ ]] ||
        die "$USAGE" "--s3 external, AWS_ENDPOINT_URL_S3=$given: the address of the store is expected, like https://s3.example:9000"
    [[ ! $given =~ //(localhost|127\.) ]] ||
        die "$USAGE" "--s3 external, AWS_ENDPOINT_URL_S3=$given: in a pod that is the pod itself; an address that pods reach is expected"
}

settle_recorded() {
    # Keys of another store may lie in the environment: they are meant only when --s3 external says so.
    if [[ $S3 != external ]]; then
        unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_ENDPOINT_URL_S3 AWS_REGION
    fi
    [[ $STORAGE != auto || -z $RECORD ]] || STORAGE="" # which one that is was decided then
    : "${PROFILE:=$(recorded profile)}" "${S3:=$(recorded s3)}" "${STORAGE:=$(recorded storage)}"
    : "${TRAIN_FUNC_IMAGE:=$(recorded image)}" "${S3_IMAGE:=$(recorded s3_image)}"
    : "${AWS_ENDPOINT_URL_S3:=$(recorded endpoint)}" "${AWS_REGION:=$(recorded region)}"
    : "${IMAGE_REGISTRY:=$(recorded image_registry)}" "${NOTEBOOK_EGRESS:=$(recorded notebook_egress)}"
    if [[ ${#ONLY[@]} -eq 0 ]]; then
        read -ra ONLY <<<"$(recorded components)"
        [[ ${#ONLY[@]} -eq 0 ]] || REMEMBERED=true
    fi
}

refuse_other_store() {
    local was
    was=$(recorded s3)
    [[ -z $S3 || -z $was || $S3 == "$was" ]] ||
        die "$USAGE" "--s3 $S3: this cluster has $was, whose data it would not find; uninstall first, or leave --s3 out"
}

# Charts take name and tag apart; and nodes keep what they have under a tag.
refuse_untagged() { # refuse_untagged VARIABLE IMAGE
    [[ -z $2 || ${2##*/} == *[:@]* ]] || die "$USAGE" "$1=$2 has neither a tag nor a digest: $2:1 for example"
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
        die "$USAGE" "--storage $STORAGE: this cluster has $1, and volumes stay in their class; uninstall first, with --purge to lose what they hold; or leave --storage out"
}

# STORAGE_CLASS: what volumes ask for; empty when nothing is to last.
settle_storage() {
    local found=""
    if [[ $STORAGE == auto ]]; then
        if [[ $1 == true && -z $RECORD_FAULT ]]; then
            found=$(default_class) || exit
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
  components: "$(recorded_and_wanted)"
  image_registry: "${IMAGE_REGISTRY:-}"
  notebook_egress: "${NOTEBOOK_EGRESS:-}"
  endpoint: "$([[ $S3 != external ]] || printf '%s' "${AWS_ENDPOINT_URL_S3:-}")"
  region: "$(region)"
YAML
}

remember() {
    render_state >"$WORK/state.yaml"
    apply "what was decided" "$WORK/state.yaml"
}

# A component that is left out stays so for later calls, until --only names it.
recorded_and_wanted() {
    local component found=() was
    was=" $(recorded components) "
    for component in "${COMPONENTS[@]}"; do
        if wanted "$component" || [[ $was == *" $component "* ]]; then
            found+=("$component")
        fi
    done
    printf '%s' "${found[*]}"
}
