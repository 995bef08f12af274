# shellcheck shell=bash disable=SC2034,SC2154
# Whether the nodes can have the images, as far as that is seen from here.

# An image counts as there when a node has it, or its registry answers from here.
check_images() {
    local image component present
    if [[ -z ${TRAIN_FUNC_IMAGE:-} ]]; then
        finding FAIL images "TRAIN_FUNC_IMAGE is not set: the image of notebooks and workers" \
            "make image IMAGE=registry/train-func:1, push it, and set TRAIN_FUNC_IMAGE=registry/train-func:1"
    fi
    present=$(k get nodes --output 'jsonpath={.items[*].status.images[*].names[*]}' | tr ' ' '\n') || present=""
    for component in "${COMPONENTS[@]}"; do
        not_wanted "$component" >/dev/null || "images_of_$component"
    done | { grep -vxE '|registry/train-func:1' || true; } | sort -u | while read -r image; do # those that are named
        image_finding "$image" "$present"
    done >"$WORK/images"
    cat "$WORK/images"
    NUM_FAILS=$((NUM_FAILS + $(grep -c ^FAIL "$WORK/images" || true)))
}

image_finding() { # image_finding IMAGE PRESENT
    local image=$1 registry answer
    if grep -qxFe "$image" -e "docker.io/$image" -e "docker.io/library/$image" <<<"$2"; then
        finding ok image "$image is on a node"
        return
    fi
    registry=$(registry_of "$image")
    answer=$(asked_for "$registry" "$image")
    case $answer in
        000) finding note image "$image: $registry does not answer from here, and no node has the image" \
            "see whether the nodes reach it and the name is right; IMAGE_REGISTRY in install.sh --help names another" ;;
        404) finding FAIL image "$image is not in $registry, which answers" "push it, or fix its name" ;;
        *) finding ok image "$image: $registry answers" ;;
    esac
}

registry_of() {
    local first=${1%%/*}
    case $first in
        docker.io) printf 'registry-1.docker.io\n' ;;
        *.* | *:* | localhost) printf '%s\n' "$first" ;;
        *) printf 'registry-1.docker.io\n' ;;
    esac
}

# The HTTP status of its manifest, 000 without an answer. Of images that need a login only the nodes know more.
asked_for() { # asked_for REGISTRY IMAGE
    local path tag answer scheme
    path=${2#docker.io/}
    path=${path#"$1"/}
    case $path in
        *@*) tag=${path#*@} path=${path%@*} ;;
        *) tag=${path##*:} path=${path%:*} ;;
    esac
    for scheme in https http; do
        answer=$(curl --silent --head --output /dev/null --max-time 10 --write-out '%{http_code}' \
            --header 'Accept: application/vnd.oci.image.index.v1+json' --header 'Accept: application/vnd.oci.image.manifest.v1+json' \
            --header 'Accept: application/vnd.docker.distribution.manifest.list.v2+json' \
            --header 'Accept: application/vnd.docker.distribution.manifest.v2+json' \
            "$scheme://$1/v2/$path/manifests/$tag") || true
        [[ $answer == 000 ]] || break
    done
    [[ $answer =~ ^[0-9]{3}$ ]] || answer=000
    printf '%s\n' "$answer"
}
