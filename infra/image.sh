#!/usr/bin/env bash
# Builds the worker and notebook image and prints its name: infra/image.sh   (make image)
#   IMAGE=registry/name:tag   its name; by default train-func with a hash of what it is made of, so that no cluster
#                             goes on with an older one
#   REQUIREMENTS=file         a requirements file with packages of your own
#   PIP_INDEX_URL=https://... a mirror of PyPI to build from; UV_DEFAULT_INDEX=, where uv is to take another
#   BUILDER=docker            or podman, buildah, or a program that is called as PROGRAM CONTEXT NAME:TAG OPTIONS... and
#                             prints the name that the cluster knows; by default the first of them that works
# Safe to run twice: only layers that changed are built.
set -Eeuo pipefail
shopt -s inherit_errexit # a failing line ends a $(...) too
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
SOURCES=(Dockerfile requirements.lock pyproject.toml README.md train_func notebooks)

say() { printf 'image: %s\n' "$*" >&2; }

die() {
    say "$*"
    exit 1
}

find_builder() {
    local name
    for name in docker podman buildah; do
        if "$name" info >/dev/null 2>&1; then
            printf '%s\n' "$name"
            return
        fi
    done
    die "no docker, podman or buildah answers; install one, or name a program: make image BUILDER=/path/to/program"
}

# The text of the user's requirements file; what it says stays readable in the image's history.
requirements() {
    [[ -n ${REQUIREMENTS:-} ]] || return 0
    [[ -r $REQUIREMENTS ]] || die "REQUIREMENTS=$REQUIREMENTS: there is no such file"
    if grep -nE '://[^/@[:space:]]+@' "$REQUIREMENTS" | cut -d: -f1 >&2; then
        die "REQUIREMENTS=$REQUIREMENTS: these lines hold a password, which every user of the image could read;" \
            "name an index that needs none"
    fi
    cat "$REQUIREMENTS"
}

fingerprint() { # fingerprint REQUIREMENTS_TEXT
    (
        cd "$ROOT"
        find "${SOURCES[@]}" -type f -not -path '*/__pycache__/*' -not -path '*/.ipynb_checkpoints/*' -print0 | sort -z | xargs -0 sha256sum
        printf '%s' "$1"
    ) | sha256sum | cut -c1-12
}

# The list of its packages, for a submit on this machine before any worker has listed them.
keep_list() { # keep_list BUILDER NAME
    local folder=${TRAIN_FUNC_HOME:-$HOME/.train_func}/images file
    file=$folder/$(tr '/:@' '___' <<<"$2").json
    mkdir -p "$folder"
    "$1" run --rm --entrypoint cat "$2" /opt/train_func/packages.json >"$file.part"
    mv "$file.part" "$file"
}

# OPTIONS: of the build, for a mirror of PyPI; its address stays readable in the image's history.
read_index() {
    local name uv=${UV_DEFAULT_INDEX:-${UV_INDEX_URL:-${PIP_INDEX_URL:-}}} pip=${PIP_INDEX_URL:-}
    for name in UV_DEFAULT_INDEX UV_INDEX_URL PIP_INDEX_URL; do
        [[ ${!name:-} != *://*@* ]] || die "$name holds a password, which every user of the image could read;" \
            "name an index that needs none, or unset it"
    done
    OPTIONS=(${pip:+--build-arg "PIP_INDEX_URL=$pip"} ${uv:+--build-arg "UV_DEFAULT_INDEX=$uv"})
}

build() { # build BUILDER NAME REQUIREMENTS_TEXT
    local builder=$1 name=$2 options=(--build-arg "REQUIREMENTS=$3" "${OPTIONS[@]}")
    case $(basename "$builder") in
        docker | podman)
            "$builder" build "${options[@]}" --tag "$name" "$ROOT" >&2
            keep_list "$builder" "$name"
            ;;
        buildah) "$builder" build --layers "${options[@]}" --tag "$name" "$ROOT" >&2 ;;
        *) name=$("$builder" "$ROOT" "$name" "${options[@]}") ;;
    esac
    printf '%s\n' "$name"
}

main() {
    local builder text name
    builder=${BUILDER:-$(find_builder)}
    text=$(requirements)
    read_index
    name=${IMAGE:-train-func:$(fingerprint "$text")}
    say "$builder builds $name; the first time, about 3 GB to download and 6 GB on disk"
    build "$builder" "$name" "$text"
}
main "$@"
