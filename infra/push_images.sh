#!/usr/bin/env bash
# Pushes the images of a bundle to a registry that the nodes pull from: infra/push_images.sh REGISTRY [SKOPEO_OPTIONS]
# Names keep their path, and the registry takes the place of the host: docker.io/path/name:tag becomes
# REGISTRY/path/name:tag. A login (skopeo login REGISTRY) or --dest-tls-verify=false may be needed.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
    printf 'push_images: %s\n' "$*" >&2
    exit 1
}

main() {
    [[ $# -gt 0 ]] || die "the registry is expected: infra/push_images.sh registry.example:5000"
    command -v skopeo >/dev/null || die "skopeo is not installed"
    [[ -f images.txt ]] || die "$PWD is no bundle, there is no images.txt; install.sh bundle --bundle DIR makes one"
    local registry=${1%/} image target
    shift
    while read -r image; do
        target=$registry/${image#*/}
        printf '%s\n' "$target"
        skopeo copy --quiet --all --preserve-digests "$@" \
            "oci-archive:images/$(tr '/:@' '___' <<<"$image").tar" "docker://$target" || die "$target could not be pushed"
    done <images.txt
}
main "$@"
