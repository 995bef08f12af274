#!/usr/bin/env bash
# Passes the tests that need a cluster, on the one that KUBECONFIG names: infra/test_cluster.sh [--all] [TESTS]
# --all passes the long proofs too, which show at length what the others show in short.
# The user of KUBECONFIG must be its admin, and sets up: a namespace enforcing pod security restricted, MinIO in it,
# and the account of infra/rbac.yaml, which the tests act as. All of it is removed at the end.
#   IMAGE=registry/name:tag         the workers' image, which the cluster can pull
#   BUILDER=program                 without IMAGE: builds it here, and makes sure that the cluster can pull it (image.sh)
#   TRAIN_FUNC_TEST_MINIO_IMAGE=... an image whose entry point is MinIO: no public registry has one
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
    printf 'test-cluster: NOTHING WAS TESTED ON A CLUSTER: %s\n' "$*" >&2
    exit 1
}

context() {
    command -v kubectl >/dev/null || die "kubectl is not installed"
    kubectl config current-context 2>/dev/null || die "KUBECONFIG=${KUBECONFIG:-} names no cluster; name one, or see" \
        "infra/kind/cluster.yaml to make one"
}

image() { # image CONTEXT
    if [[ -n ${IMAGE:-} ]]; then
        printf '%s\n' "$IMAGE"
    elif [[ -n ${BUILDER:-} ]]; then
        infra/image.sh
    else
        die "IMAGE=registry/name:tag is expected, an image that context $1 can pull: make image IMAGE=..., push it," \
            "make test-cluster IMAGE=...; or BUILDER=, a program that builds one and brings it to the cluster"
    fi
}

passes() { # passes PYTEST_OPTIONS...: one part fails alone, the next runs all the same
    .venv/bin/python -m pytest "$@" || failed=1
}

main() {
    local context image tier="not slow"
    if [[ ${1:-} == --all ]]; then
        tier="slow or not slow"
        shift
    fi
    context=$(context)
    image=$(image "$context")
    printf 'test-cluster: on context %s, workers of %s\n' "$context" "$image"
    export TRAIN_FUNC_IMAGE=$image
    if [[ $# -gt 0 ]]; then
        .venv/bin/python -m pytest -m "$tier" --durations=15 "$@"
        return
    fi
    local failed=0
    passes --durations=5 -m "$tier" tests/install # needs a bare cluster, and leaves it so
    # Jobs wait more than they work: two processes share the files of tests, each with a namespace and a store of its own.
    passes --durations=15 -m "($tier) and not alone" -n 2 --dist loadfile tests/cluster
    passes --durations=5 -m "($tier) and alone" tests/cluster
    return "$failed"
}
main "$@"
