# shellcheck shell=bash disable=SC2034,SC2154
# Notebooks in the cluster: the chart of JupyterHub with our image, an account without rights, and a login.
readonly JUPYTER=my-jupyter
readonly HUB_NAMESPACE=train-func-hub # with nothing of the others in it: the hub may read its Secrets and make pods there
readonly ONE_CIRCLE="one circle of trust: its users share one account, namespace, Role and key, with every kind of login"

images_of_jupyterhub() {
    printf '%s\n' "$JUPYTERHUB_HUB_IMAGE" "$JUPYTERHUB_PROXY_IMAGE" "${TRAIN_FUNC_IMAGE:-registry/train-func:1}"
}

render_jupyterhub() {
    local chart
    render_account
    chart=$(chart_of jupyterhub "$JUPYTERHUB_CHART" "$JUPYTERHUB_CHARTS")
    jupyterhub_values
    rendered "$JUPYTER" "$HUB_NAMESPACE" "$chart" "${JUPYTERHUB_VALUES[@]}"
}

render_account() {
    cp -r "$ROOT/infra/jupyterhub" "$WORK/"
    kustomized jupyterhub "$HUB_NAMESPACE" </dev/null
}

# JUPYTERHUB_VALUES: the files, the later ones winning.
jupyterhub_values() {
    JUPYTERHUB_VALUES=("$ROOT/infra/jupyterhub/values.yaml" "$WORK/jupyterhub-values.yaml")
    if [[ $HEADLESS == true ]]; then
        JUPYTERHUB_VALUES+=("$ROOT/infra/jupyterhub/headless.yaml")
    fi
    {
        values_of_hub
        values_of_proxy
        values_of_notebooks
    } >"$WORK/jupyterhub-values.yaml"
}

values_of_hub() {
    cat <<YAML
hub:
  image: $(image_values "$JUPYTERHUB_HUB_IMAGE" name)
  networkPolicy: {enabled: $NETWORK_POLICIES}
  livenessProbe: {enabled: $PROBES}
  readinessProbe: {enabled: $PROBES}
YAML
    if [[ -n $STORAGE_CLASS ]]; then
        printf '  db: {pvc: {storageClassName: %s}}\n' "$STORAGE_CLASS"
    else
        printf '  db: {type: sqlite-memory}\n'
    fi
    [[ -z $SPOT_KEY ]] || gpu_on_spot_nodes
}

# Nodes with GPUs are the ones worth the risk of an eviction; homes stay.
gpu_on_spot_nodes() {
    cat <<YAML
  extraConfig:
    spot: |
      spot = {"key": "$SPOT_KEY", "operator": "In", "values": ["spot"]}
      for profile in c.KubeSpawner.profile_list:
          if profile["slug"] == "gpu":
              profile["kubespawner_override"] |= {
                  "tolerations": [{"key": "$SPOT_KEY", "operator": "Equal", "value": "spot", "effect": "NoSchedule"}],
                  "node_affinity_preferred": [{"weight": 100, "preference": {"matchExpressions": [spot]}}],
              }
YAML
}

values_of_proxy() {
    cat <<YAML
proxy:
  chp:
    image: $(image_values "$JUPYTERHUB_PROXY_IMAGE" name)
    networkPolicy: {enabled: $NETWORK_POLICIES}
    livenessProbe: {enabled: $PROBES}
    readinessProbe: {enabled: $PROBES}
YAML
}

values_of_notebooks() {
    local image=${TRAIN_FUNC_IMAGE:-registry/train-func:1} storage="dynamic: {storageClass: $STORAGE_CLASS}" api
    [[ -n $STORAGE_CLASS ]] || storage="type: none"
    api=$(egress_to_api) || exit
    cat <<YAML
singleuser:
  image: $(image_values "$image" name)
  storage: {$storage}
  cloudMetadata: {blockWithIptables: $BLOCK_METADATA_BY_IPTABLES}
  extraEnv:
    TRAIN_FUNC_IMAGE: "$image"
    TRAIN_FUNC_S3_ENDPOINT: "$(store_endpoint)"
    AWS_ENDPOINT_URL_S3: "$(store_endpoint)"
    AWS_REGION: "$(region)"
    TRAIN_FUNC_CPU: "$WORKER_CPU"
    TRAIN_FUNC_MEMORY: "$WORKER_MEMORY"
  networkPolicy:
    enabled: $NETWORK_POLICIES
    egressAllowRules: {nonPrivateIPs: $([[ ${NOTEBOOK_EGRESS:-cluster} == internet ]] && echo true || echo false)}
    egress:
$api
$(egress_to_store)
$(egress_to_dns_caches)
YAML
}

# Policies look at addresses after a Service is translated: those of the API server itself, each alone. Where they
# change (a control plane is replaced) install.sh install writes them anew. Cilium: policy-cidr-match-mode: nodes.
egress_to_api() {
    local address port found
    found=$(api_addresses_or_placeholder) || exit
    while read -r address port; do
        egress_to_address "$address" "$port"
    done <<<"$found"
}

egress_to_address() { # egress_to_address ADDRESS PORT
    local width=32
    [[ $1 != *:* ]] || width=128
    printf '      - {to: [{ipBlock: {cidr: "%s/%s"}}], ports: [{port: %s, protocol: TCP}]}\n' "$1" "$width" "$2"
}

# Without a cluster to ask: an address reserved for documentation (RFC 5737).
api_addresses_or_placeholder() {
    if [[ $COMMAND == render ]]; then
        printf '192.0.2.1 6443\n'
    else
        api_addresses
    fi
}

# The port of the store's pods. One outside by its address, one elsewhere in the cluster by its namespace. A policy knows
# no names, and the addresses behind the name of an S3 endpoint change: for a name, the port is open to all addresses but
# those that tell machines their keys.
egress_to_store() {
    local rest host port
    if [[ $S3 != external ]]; then
        printf '      - to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kubeflow}}, '
        printf 'podSelector: {matchLabels: {app: myminio}}}]\n        ports: [{port: 9000, protocol: TCP}]\n'
        return
    fi
    rest=${AWS_ENDPOINT_URL_S3#*://} port=443
    [[ $AWS_ENDPOINT_URL_S3 != http://* ]] || port=80
    host=${rest%%/*}
    [[ $host != *:* ]] || port=${host##*:} host=${host%:*}
    if [[ $host =~ \.svc(\.|$) ]]; then
        rest=${host#*.}
        printf '      - {to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}}]}\n' "${rest%%.*}"
        return
    fi
    if [[ $host =~ ^[0-9.]+$ ]]; then
        egress_to_address "$host" "$port"
        return
    fi
    printf '      - to:\n          - ipBlock: {cidr: 0.0.0.0/0, except: [169.254.0.0/16]}\n'
    printf '          - ipBlock: {cidr: "::/0", except: ["fd00:ec2::/32"]}\n'
    printf '        ports: [{port: %s, protocol: TCP}]\n' "$port"
}

# Where every node has a DNS cache, it listens on an address of this kind; the one left out tells machines their keys.
egress_to_dns_caches() {
    printf '      - to: [{ipBlock: {cidr: 169.254.0.0/16, except: [169.254.169.254/32]}}]\n'
    printf '        ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]\n'
}

install_jupyterhub() {
    local chart
    chart=$(chart_of jupyterhub "$JUPYTERHUB_CHART" "$JUPYTERHUB_CHARTS")
    render_account >"$WORK/jupyterhub.yaml"
    apply jupyterhub "$WORK/jupyterhub.yaml"
    copy_key_of_jobs jupyterhub "$HUB_NAMESPACE" myminio-jobs
    keep_secret jupyterhub "$HUB_NAMESPACE" my-jupyter-login user_password "$(random 24)" admin_password "$(random 40)"
    jupyterhub_values
    release jupyterhub "$JUPYTER" "$HUB_NAMESPACE" "$chart" "${JUPYTERHUB_VALUES[@]}"
    say "  $ONE_CIRCLE"
}

verify_jupyterhub() {
    local here there
    k rollout status deployment/hub --namespace "$HUB_NAMESPACE" --timeout 30s >/dev/null || return
    k rollout status deployment/proxy --namespace "$HUB_NAMESPACE" --timeout 30s >/dev/null || return
    here=$(secret_value "$HUB_NAMESPACE" myminio-jobs rootPassword) || return
    there=$(secret_value kubeflow myminio-jobs rootPassword) || return
    [[ $here == "$there" ]] || { printf 'notebooks have another key of the store than jobs\n' && return 1; }
}

status_of_jupyterhub() { rollout_of "$HUB_NAMESPACE" deployment/hub; }

tell_hub() {
    printf 'JupyterHub from here:   kubectl --context %s -n %s port-forward svc/proxy-public 8000:http\n' "$CONTEXT" "$HUB_NAMESPACE"
    printf '%22s  %s\n' "" "$ONE_CIRCLE"
}

# The hub made servers and homes, so helm does not know of them.
remove_jupyterhub() {
    local left
    ours_or_none "$JUPYTER" "$HUB_NAMESPACE" || return 0
    remove_release "$JUPYTER" "$HUB_NAMESPACE"
    delete_of_hub pods
    if [[ $PURGE == true ]]; then
        delete_of_hub persistentvolumeclaims
    fi
    left=$(of_hub persistentvolumeclaims) || exit
    [[ -z $left ]] || say "  kept in $HUB_NAMESPACE: $(paste -sd' ' <<<"$left")"
}

of_hub() { # of_hub KIND
    asked "$1" --namespace "$HUB_NAMESPACE" --selector "app=jupyterhub,release=$JUPYTER" --output name
}

delete_of_hub() { # delete_of_hub KIND
    local what found
    found=$(of_hub "$1") || exit
    for what in $found; do
        k delete "$what" --namespace "$HUB_NAMESPACE" --ignore-not-found --timeout "$TIMEOUT" --request-timeout 0 |
            sed 's/^/  /' >&2
    done
}
