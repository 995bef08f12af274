# shellcheck shell=bash disable=SC2034,SC2154
# Helm releases: rendered, installed or upgraded where something differs, and removed; never those of others.

# rendered NAME NAMESPACE CHART VALUES...: its objects, with no cluster to ask
rendered() {
    local name=$1 namespace=$2 chart=$3
    shift 3
    command -v helm >/dev/null || die "$PREREQUISITE" "helm is not installed; $HELM_AT_LEAST or newer, or --skip openebs,jupyterhub"
    # Built from a Go module helm takes itself for a very old Kubernetes.
    helm template "$name" "$chart" --namespace "$namespace" --kube-version "$SERVER_AT_LEAST" --no-hooks \
        "${@/#/--values=}"
}

# release COMPONENT NAME NAMESPACE CHART VALUES...: nothing when chart, values and what is in the cluster are the same
release() {
    local component=$1 name=$2 namespace=$3 chart=$4 made_of
    shift 4
    made_of=$(cat "$chart" "$@" | sha256sum | cut -c1-16)
    if deployed "$name" "$namespace" "$made_of"; then
        say "  unchanged"
        return
    fi
    if [[ $DRY_RUN == true ]]; then
        say "  would be installed: release $namespace/$name of $(basename "$chart")"
        rendered "$name" "$namespace" "$chart" "$@" >"$WORK/$name.yaml"
        objects_of "$WORK/$name.yaml" | sed 's/^/    /' >&2
        return
    fi
    forget_interrupted "$name" "$namespace"
    upgrade_release "$name" "$namespace" "$chart" "$made_of" "$@"
    say "  installed release $namespace/$name of $(basename "$chart")"
    CHANGED+=("$component")
}

upgrade_release() { # upgrade_release NAME NAMESPACE CHART MADE_OF VALUES...
    local name=$1 namespace=$2 chart=$3 made_of=$4 said FORCE=()
    shift 4
    # Helm 4 applies server-side: a change by hand would be a conflict forever.
    [[ $(helm version --template '{{.Version}}') != v4* ]] || FORCE=(--force-conflicts)
    # No hooks: those of the charts here only pull images or run programs that nothing needs.
    if ! said=$(h upgrade "$name" "$chart" --install --namespace "$namespace" --no-hooks --wait --timeout "$TIMEOUT" \
        --history-max 5 --cleanup-on-fail "${FORCE[@]}" --labels "made-by=$OWNER,made-of=$made_of" "${@/#/--values=}" 2>&1 >/dev/null); then
        evidence "$namespace"
        case $said in
            *"timed out"* | *"deadline exceeded"* | *"not ready"*)
                die "$TIMED_OUT" "release $namespace/$name was not ready within $TIMEOUT; what is known stands above" ;;
            *) die "$FAILED" "release $namespace/$name: $said" ;;
        esac
    fi
}

# release_field NAME NAMESPACE FIELD: status, made-by or made-of of its newest revision; nothing when there is none
release_field() {
    local found
    found=$(asked secrets --namespace "$2" --selector "owner=helm,name=$1" --output \
        "jsonpath={range .items[*]}{.metadata.labels.version} {.metadata.labels.$3}{'\n'}{end}") || exit
    sort -n <<<"$found" | tail -n 1 | cut -d' ' -f2
}

# deployed NAME NAMESPACE MADE_OF: whether that is what runs, with no object changed or removed since
deployed() {
    local status made_of
    status=$(release_field "$1" "$2" status) || exit
    made_of=$(release_field "$1" "$2" made-of) || exit
    [[ $status == deployed && $made_of == "$3" ]] || return 1
    h get manifest "$1" --namespace "$2" |
        k diff --namespace "$2" --server-side --force-conflicts --field-manager "$OWNER" --filename - >/dev/null 2>&1
}

# Helm refuses a release whose last change or removal was killed; what is left of it is taken over by the next one.
forget_interrupted() { # forget_interrupted NAME NAMESPACE
    local status
    status=$(release_field "$1" "$2" status)
    if [[ $status == pending-* || $status == uninstalling ]]; then
        say "  an earlier run was interrupted; going on"
        k delete secrets --namespace "$2" --selector \
            "owner=helm,name=$1,status in (pending-install,pending-upgrade,pending-rollback,uninstalling)" >/dev/null
    fi
}

# ours_or_none NAME NAMESPACE: whether no release of others has this name
ours_or_none() {
    local status made_by
    status=$(release_field "$1" "$2" status) || exit
    made_by=$(release_field "$1" "$2" made-by) || exit
    [[ -z $status || $made_by == "$OWNER" ]]
}

remove_release() { # remove_release NAME NAMESPACE
    local made_by
    made_by=$(release_field "$1" "$2" made-by) || exit
    if [[ $made_by == "$OWNER" ]]; then
        h uninstall "$1" --namespace "$2" --no-hooks --wait --timeout "$TIMEOUT" >/dev/null
        say "  removed release $2/$1"
    fi
}

# Releases of others under our names, before anything is changed.
check_releases() {
    local component name namespace
    while read -r component name namespace; do
        if ! not_wanted "$component" >/dev/null; then
            ours_or_none "$name" "$namespace" || finding FAIL "$component" \
                "release $namespace/$name is there, not made by install.sh" \
                "--skip $component to go on with it, or uninstall it: helm uninstall $name -n $namespace"
        fi
    done <<<"openebs openebs $OPENEBS_NAMESPACE
jupyterhub $JUPYTER $HUB_NAMESPACE"
    if [[ $STORAGE == openebs ]] && foreign_class; then
        finding FAIL openebs "there is a class $OPENEBS_CLASS, not made by install.sh" "--storage existing:$OPENEBS_CLASS uses it"
    fi
}

foreign_class() {
    local status
    status=$(release_field openebs openebs status) || exit
    [[ -z $status ]] && exists storageclass "$OPENEBS_CLASS"
}

# image_values IMAGE NAME_KEY [MORE]: of registry/name:tag or registry/name@sha256:digest, as charts join it with a colon
image_values() {
    printf '{%s: "%s", tag: "%s"%s}\n' "$2" "${1%:*}" "${1##*:}" "${3:-}"
}
