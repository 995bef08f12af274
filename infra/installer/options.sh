# shellcheck shell=bash disable=SC2034,SC2154
# The command line, and the commands, components and profiles there are: everything that is wrong is said at once.
COMMANDS=(install upgrade status doctor render bundle credentials uninstall)
COMPONENTS=(openebs s3 operator jobs jupyterhub)
NAMESPACES=(kubeflow train-func train-func-hub) # store and operator, jobs, notebooks: each a circle of trust
PROFILES=(generic kind aks hpk testbed)
ENGINES=(seaweedfs minio external)
FAULTS=()

COMMAND="" PROFILE="" STORAGE="" S3="" BUNDLE="" CONTEXT="" TIMEOUT=10m
ONLY=() SKIP=()
DRY_RUN=false YES=false PURGE=false

read_options() {
    [[ $# -gt 0 && $1 != -h && $1 != --help ]] || manual "$#"
    COMMAND=$1
    shift
    one_of "command" "$COMMAND" "${COMMANDS[@]}"
    while [[ $# -gt 0 ]]; do
        case $1 in
            --profile | --storage | --s3 | --bundle | --context | --timeout | --only | --skip)
                [[ $# -gt 1 ]] || die "$USAGE" "$1 expects a value; see install.sh --help"
                read_value "$1" "$2"
                shift 2
                ;;
            --dry-run | --yes | --purge)
                read_flag "$1"
                shift
                ;;
            --*=*)
                set -- "${1%%=*}" "${1#*=}" "${@:2}"
                ;;
            *)
                FAULTS+=("$1 is no option; see install.sh --help")
                shift
                ;;
        esac
    done
    judge_options
    [[ ${#FAULTS[@]} -eq 0 ]] || die "$USAGE" "$(printf '%s\n' "${FAULTS[@]}")"
}

manual() {
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$ROOT/install.sh"
    [[ $1 -gt 0 ]] || exit "$USAGE"
    exit 0
}

read_value() {
    case $1 in
        --profile) PROFILE=$2 ;;
        --storage) STORAGE=$2 ;;
        --s3) S3=$2 ;;
        --bundle) BUNDLE=$2 ;;
        --context) CONTEXT=$2 ;;
        --timeout) TIMEOUT=$2 ;;
        --only) IFS=, read -ra ONLY <<<"$2" ;;
        --skip) IFS=, read -ra SKIP <<<"$2" ;;
    esac
}

read_flag() {
    case $1 in
        --dry-run) DRY_RUN=true ;;
        --yes) YES=true ;;
        --purge) PURGE=true ;;
    esac
}

judge_options() {
    local component
    [[ -z $PROFILE ]] || one_of --profile "$PROFILE" "${PROFILES[@]}"
    [[ -z $S3 ]] || one_of --s3 "$S3" "${ENGINES[@]}"
    [[ $STORAGE =~ ^(|auto|openebs|none|existing:[a-z0-9.-]+)$ ]] ||
        FAULTS+=("--storage $STORAGE: auto, openebs, existing:CLASS or none is expected")
    [[ $TIMEOUT =~ ^[1-9][0-9]*[smh]$ ]] || FAULTS+=("--timeout $TIMEOUT: a time like 90s, 10m or 1h is expected")
    for component in "${ONLY[@]}" "${SKIP[@]}"; do
        one_of component "$component" "${COMPONENTS[@]}"
    done
    [[ ${#ONLY[@]} -eq 0 || ${#SKIP[@]} -eq 0 ]] || FAULTS+=("--only and --skip: one of them is expected")
    if [[ $PURGE == true && $COMMAND != uninstall ]]; then
        FAULTS+=("--purge goes with uninstall alone")
    fi
    if [[ $COMMAND == uninstall && $((${#ONLY[@]} + ${#SKIP[@]})) -gt 0 ]]; then
        FAULTS+=("--only and --skip do not go with uninstall, which removes everything that install.sh made")
    fi
    [[ -z ${IMAGE_REGISTRY:-} || $IMAGE_REGISTRY =~ ^[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)*/?$ ]] ||
        FAULTS+=("IMAGE_REGISTRY=$IMAGE_REGISTRY: host[:port][/path] is expected, without https://")
    [[ ${NOTEBOOK_EGRESS:-cluster} =~ ^(cluster|internet)$ ]] ||
        FAULTS+=("NOTEBOOK_EGRESS=$NOTEBOOK_EGRESS: cluster or internet is expected")
    if [[ $COMMAND == bundle && -z $BUNDLE ]]; then
        FAULTS+=("bundle: --bundle DIR is expected, where everything is collected")
    fi
}

# one_of WHAT GIVEN ALLOWED...
one_of() {
    local what=$1 given=$2 allowed
    shift 2
    for allowed in "$@"; do
        [[ $given != "$allowed" ]] || return 0
    done
    FAULTS+=("$what $given: one of $(printf '%s ' "$@")is expected")
}

# wanted COMPONENT: whether this call is to work on it
wanted() {
    local component
    for component in "${SKIP[@]}"; do
        [[ $component != "$1" ]] || return 1
    done
    [[ ${#ONLY[@]} -gt 0 ]] || return 0
    for component in "${ONLY[@]}"; do
        [[ $component != "$1" ]] || return 0
    done
    return 1
}

# seconds 10m
seconds() {
    local number=${1%[smh]}
    case $1 in
        *s) printf '%s\n' "$number" ;;
        *m) printf '%s\n' $((number * 60)) ;;
        *h) printf '%s\n' $((number * 3600)) ;;
    esac
}
