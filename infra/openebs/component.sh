# shellcheck shell=bash disable=SC2034,SC2154
# Volumes on folders of the nodes, where the cluster has no storage class: the OpenEBS chart, its hostpath engine alone.
# Such a volume lives and dies with its node, and its size is a wish: nothing holds a pod to it.
readonly OPENEBS_CLASS=openebs-hostpath OPENEBS_PROVISIONER=openebs.io/local OPENEBS_NAMESPACE=openebs

images_of_openebs() {
    [[ $STORAGE != openebs ]] || printf '%s\n' "$OPENEBS_PROVISIONER_IMAGE" "$OPENEBS_HELPER_IMAGE"
}

# The helper that makes a volume's folder on the node is privileged: only this namespace allows that.
render_openebs() {
    local chart
    namespace_yaml "$OPENEBS_NAMESPACE" privileged
    chart=$(chart_of openebs "$OPENEBS_CHART" "$OPENEBS_CHARTS")
    openebs_values >"$WORK/openebs-values.yaml"
    rendered openebs "$OPENEBS_NAMESPACE" "$chart" "$ROOT/infra/openebs/values.yaml" "$WORK/openebs-values.yaml" \
        >"$WORK/openebs.yaml"
    only_hostpath "$WORK/openebs.yaml"
    cat "$WORK/openebs.yaml"
}

openebs_values() {
    local default
    default=$(default_wanted) || exit
    cat <<YAML
localpv-provisioner:
  localpv:
    basePath: "$VOLUME_FOLDER"
    image: $(image_values "$OPENEBS_PROVISIONER_IMAGE" repository ', registry: ""')
  helperPod:
    image: $(image_values "$OPENEBS_HELPER_IMAGE" repository ', registry: ""')
  hostpathClass:
    name: $OPENEBS_CLASS
    isDefaultClass: $default
YAML
}

# Only where the cluster has none: two defaults are one too many.
default_wanted() {
    local found=""
    if [[ $COMMAND != render ]]; then
        found=$(default_class) || exit
    fi
    [[ -z $found || $found == "$OPENEBS_CLASS" ]] && printf 'true\n' || printf 'false\n'
}

# Another version of the chart may bring what is switched off here under another name.
only_hostpath() { # only_hostpath RENDERED
    local found
    found=$(awk '($1 == "image:" && NF == 2) || ($2 == "image:" && NF == 3) { print $NF }' "$1" | tr -d "\"'" |
        grep -vxF "$OPENEBS_PROVISIONER_IMAGE" | paste -sd' ') || true
    [[ -z $found ]] || die "$PREREQUISITE" \
        "chart openebs $OPENEBS_CHART brings more than hostpath volumes ($found); switch it off in infra/openebs/values.yaml"
}

install_openebs() { # with the values that check_published has written
    local chart
    if ! foreign namespace "$OPENEBS_NAMESPACE"; then
        namespace_yaml "$OPENEBS_NAMESPACE" privileged >"$WORK/openebs-namespace.yaml"
        apply openebs "$WORK/openebs-namespace.yaml"
    fi
    make_way_for_another_version
    chart=$(chart_of openebs "$OPENEBS_CHART" "$OPENEBS_CHARTS")
    release openebs openebs "$OPENEBS_NAMESPACE" "$chart" \
        "$ROOT/infra/openebs/values.yaml" "$WORK/openebs-values.yaml"
}

# What selects its pods changes between versions of the chart, and of a Deployment that cannot be changed.
make_way_for_another_version() {
    local found made_by
    made_by=$(release_field openebs "$OPENEBS_NAMESPACE" made-by) || exit
    [[ $made_by == "$OWNER" ]] || return 0
    found=$(asked deployments --namespace "$OPENEBS_NAMESPACE" --selector openebs.io/component-name=openebs-localpv-provisioner \
        --output 'jsonpath={.items[*].spec.template.spec.containers[0].image}') || exit
    [[ -n $found && $found != "$OPENEBS_PROVISIONER_IMAGE" && $DRY_RUN == false ]] || return 0
    k delete deployments --namespace "$OPENEBS_NAMESPACE" --selector openebs.io/component-name=openebs-localpv-provisioner >/dev/null
}

verify_openebs() {
    exists storageclass "$OPENEBS_CLASS" || { printf 'the class %s is missing\n' "$OPENEBS_CLASS" && return 1; }
    k rollout status deployment/openebs-localpv-provisioner --namespace "$OPENEBS_NAMESPACE" --timeout 30s >/dev/null
}

status_of_openebs() { rollout_of "$OPENEBS_NAMESPACE" deployment/openebs-localpv-provisioner; }

# A volume that is left needs the provisioner to be deleted.
remove_openebs() {
    local left
    ours_or_none openebs "$OPENEBS_NAMESPACE" || return 0
    [[ $PURGE == false ]] || await_no_volumes
    left=$(openebs_volumes) || exit
    if [[ -n $left ]]; then
        say "  kept: these volumes need it, of the claims $(paste -sd' ' <<<"$left")"
        say "  next: once they are deleted, helm uninstall openebs -n $OPENEBS_NAMESPACE; kubectl delete namespace $OPENEBS_NAMESPACE"
        return
    fi
    remove_release openebs "$OPENEBS_NAMESPACE"
    remove_namespaces "$OPENEBS_NAMESPACE"
}

# A volume is gone only some seconds after its claim, when its folder is.
await_no_volumes() {
    local end=$((SECONDS + 60))
    while [[ -n $(openebs_volumes) && $SECONDS -lt $end ]]; do
        sleep 1
    done
}

openebs_volumes() {
    asked persistentvolumes --output \
        "jsonpath={range .items[?(@.spec.storageClassName==\"$OPENEBS_CLASS\")]}{.spec.claimRef.namespace}/{.spec.claimRef.name}{'\n'}{end}"
}
