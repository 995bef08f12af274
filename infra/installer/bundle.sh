# shellcheck shell=bash disable=SC2034,SC2154
# What others publish and this repository does not hold: the operator's manifests and the charts, with checksums.

# Everything for a site without the internet, in $BUNDLE; what is there already is kept.
collect_bundle() {
    settle false
    bundle_prerequisites
    mkdir -p "$BUNDLE/charts" "$BUNDLE/images"
    fetch_operator "$BUNDLE"
    fetch_chart "$BUNDLE" openebs "$OPENEBS_CHARTS" "$OPENEBS_CHART"
    fetch_chart "$BUNDLE" jupyterhub "$JUPYTERHUB_CHARTS" "$JUPYTERHUB_CHART"
    cp -r "$ROOT/install.sh" "$ROOT/infra" "$BUNDLE/"
    images_of_all >"$BUNDLE/images.txt"
    save_images
    # shellcheck disable=SC2094
    (cd "$BUNDLE" && find . -type f ! -name SHA256SUMS -print0 | sort -z | xargs -0 sha256sum >SHA256SUMS)
    say "bundle: $BUNDLE is complete, $(du -sh "$BUNDLE" | cut -f1). There, in this folder:"
    say "  infra/push_images.sh REGISTRY    # one that the nodes pull from"
    say "  IMAGE_REGISTRY=REGISTRY TRAIN_FUNC_IMAGE=REGISTRY/${TRAIN_FUNC_IMAGE#*/} ./install.sh install --bundle ."
}

# All that is missing at once, before anything is fetched.
bundle_prerequisites() {
    local tool missing=()
    for tool in git helm skopeo sha256sum; do
        command -v "$tool" >/dev/null || missing+=("$tool is not installed")
    done
    [[ -n ${TRAIN_FUNC_IMAGE:-} ]] || missing+=("TRAIN_FUNC_IMAGE is not set: the image of notebooks and workers, \
in a registry that this machine reaches")
    [[ $S3 != minio || -n ${S3_IMAGE:-} ]] || missing+=("--s3 minio: S3_IMAGE is not set, and no public registry has one")
    [[ ${#missing[@]} -eq 0 ]] || die "$PREREQUISITE" "nothing was collected: $(printf '%s\n' "${missing[@]}")"
}

bundle_hint() { [[ $COMMAND == bundle ]] || printf '; use --bundle DIR, collected where it can (install.sh bundle)'; }

fetch_operator() { # fetch_operator FOLDER
    [[ ! -d $1/operator || $(cat "$1/operator.commit" 2>/dev/null) != "$OPERATOR_COMMIT" ]] || return 0
    say "bundle: the Training Operator's manifests $OPERATOR_VERSION"
    command -v git >/dev/null || die "$PREREQUISITE" "git is not installed; it fetches the operator's manifests"
    rm -rf "$WORK/operator-source"
    git -C "$WORK" init --quiet operator-source
    git -C "$WORK/operator-source" fetch --quiet --depth 1 "$OPERATOR_REPOSITORY" "$OPERATOR_COMMIT" ||
        die "$PREREQUISITE" "$OPERATOR_REPOSITORY cannot be reached from here$(bundle_hint)"
    rm -rf "$1/operator" "$1/operator.commit" "$1/manifests"
    if ! git -C "$WORK/operator-source" archive "$OPERATOR_COMMIT" manifests | tar -x -C "$1" || ! mv "$1/manifests" "$1/operator"; then
        die "$FAILED" "the manifests of the operator cannot be written to $1; what git or tar said stands above"
    fi
    printf '%s\n' "$OPERATOR_COMMIT" >"$1/operator.commit"
}

fetch_chart() { # fetch_chart FOLDER NAME REPOSITORY VERSION
    [[ ! -f $1/charts/$2-$4.tgz ]] || return 0
    say "bundle: chart $2 $4"
    command -v helm >/dev/null || die "$PREREQUISITE" "helm is not installed; it fetches the charts"
    helm pull "$2" --repo "$3" --version "$4" --destination "$1/charts" >&2 ||
        die "$PREREQUISITE" "chart $2 $4 cannot be had from $3$(bundle_hint)"
}

images_of_all() {
    local component
    for component in "${COMPONENTS[@]}"; do
        if wanted "$component"; then
            "images_of_$component"
        fi
    done | sort -u
}

# Each as an archive that keeps its digest, which is what the nodes ask for.
save_images() {
    local image file
    while read -r image; do
        file=$BUNDLE/images/$(tr '/:@' '___' <<<"$image").tar
        [[ ! -f $file ]] || continue
        say "bundle: image $image"
        skopeo copy --quiet --all --preserve-digests "docker://$image" "oci-archive:$file.part" ||
            die "$FAILED" "$image cannot be had; see above why, then run this again: what is here already is kept"
        mv "$file.part" "$file"
    done <"$BUNDLE/images.txt"
}

# Whether the bundle is as it was collected; one put together by hand has no sums.
check_bundle() {
    local said
    [[ -n $BUNDLE && -f $BUNDLE/SHA256SUMS ]] || return 0
    if said=$(cd "$BUNDLE" && sha256sum --check --quiet SHA256SUMS 2>&1); then
        finding ok bundle "$BUNDLE is as it was collected"
    else
        finding FAIL bundle "$BUNDLE is not as it was collected: $(head -n 1 <<<"$said")" "copy it again, or collect it again"
    fi
}

# The folder with charts and manifests: --bundle, else a cache that is filled once.
bundle_folder() {
    if [[ -n $BUNDLE ]]; then
        printf '%s\n' "$BUNDLE"
    else
        printf '%s\n' "${XDG_CACHE_HOME:-$HOME/.cache}/train_func/bundle"
    fi
}

# chart_of NAME VERSION: its file, fetched when there is no --bundle
chart_of() {
    local name=$1 version=$2 repository=$3 folder
    folder=$(bundle_folder)
    if [[ -z $BUNDLE ]]; then
        mkdir -p "$folder/charts"
        fetch_chart "$folder" "$name" "$repository" "$version"
    fi
    [[ -f $folder/charts/$name-$version.tgz ]] ||
        die "$PREREQUISITE" "$folder/charts/$name-$version.tgz is not in the bundle; collect it with: install.sh bundle"
    printf '%s\n' "$folder/charts/$name-$version.tgz"
}

operator_manifests() {
    local folder
    folder=$(bundle_folder)
    if [[ -z $BUNDLE ]]; then
        mkdir -p "$folder"
        fetch_operator "$folder"
    fi
    [[ -d $folder/operator/overlays/standalone ]] ||
        die "$PREREQUISITE" "$folder/operator is not in the bundle; collect it with: install.sh bundle"
    [[ ! -f $folder/operator.commit || $(cat "$folder/operator.commit") == "$OPERATOR_COMMIT" ]] ||
        die "$PREREQUISITE" "$folder/operator is not of version $OPERATOR_VERSION; collect it again with: install.sh bundle"
    printf '%s\n' "$folder/operator"
}
