# shellcheck shell=bash disable=SC2034,SC2154
# What a component is made of, as YAML: kustomize for plain manifests, helm for charts. Contacts nothing.

# Every component's objects, or those of the wanted ones.
render_all() {
    local component
    settle false
    kubectl_wanted
    for component in "${COMPONENTS[@]}"; do
        if ! not_wanted "$component" >/dev/null; then
            printf -- '---\n# component %s\n' "$component"
            "render_$component"
        fi
    done >"$WORK/rendered.yaml" # whole or not at all
    cat "$WORK/rendered.yaml"
}

# kustomized COMPONENT NAMESPACE: the folder $WORK/COMPONENT, with our labels; further kustomization lines from stdin
kustomized() {
    local component=$1 namespace=$2 folder=$WORK/overlay-$1
    mkdir -p "$folder"
    {
        cat <<YAML
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: $namespace
resources: [../$component]
labels:
  - pairs:
      app.kubernetes.io/managed-by: train-func-install
      app.kubernetes.io/component: $component
YAML
        cat
    } >"$folder/kustomization.yaml"
    kubectl kustomize "$folder"
}

# image_name and image_tag of registry/name:tag, or of registry/name@sha256:digest, for kustomize
kustomize_image() { # kustomize_image NAME REFERENCE
    local name=$1 reference=$2
    case $reference in
        *@*) printf '  - {name: %s, newName: "%s", digest: "%s"}\n' "$name" "${reference%@*}" "${reference#*@}" ;;
        *) printf '  - {name: %s, newName: "%s", newTag: "%s"}\n' "$name" "${reference%:*}" "${reference##*:}" ;;
    esac
}

# Kustomize patches of the profile: every Service without an address of its own.
headless() {
    [[ $HEADLESS == true ]] || return 0
    cat <<'YAML'
  - target: {kind: Service}
    patch: |
      - {op: add, path: /spec/clusterIP, value: None}
YAML
}

# no_probes KIND NAME PROBE...: takes them from its first container
no_probes() {
    local kind=$1 name=$2 probe
    shift 2
    printf '  - target: {kind: %s, name: %s}\n    patch: |\n' "$kind" "$name"
    for probe in "$@"; do
        printf '      - {op: remove, path: /spec/template/spec/containers/0/%s}\n' "$probe"
    done
}

# namespace_yaml NAME LEVEL: a namespace of ours
namespace_yaml() {
    cat <<YAML
apiVersion: v1
kind: Namespace
metadata:
  name: $1
  labels:
    app.kubernetes.io/managed-by: train-func-install
    pod-security.kubernetes.io/enforce: $2
    pod-security.kubernetes.io/warn: $2
YAML
}
