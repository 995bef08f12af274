#!/usr/bin/env bash
# Makes a bare Kubernetes cluster ready for train_func, keeps it so, and takes it down again.
#
#   TRAIN_FUNC_IMAGE=registry/train-func:1 ./install.sh install --profile kind
#
# Commands
#   install      brings every component up; run again it changes nothing and says so
#   upgrade      the same with the versions of this checkout, on a cluster that was installed before
#   status       what runs and how to reach it
#   doctor       every prerequisite with its finding and its remedy; changes nothing
#   render       prints what would be applied, every component
#   bundle       collects charts, manifests and images in --bundle DIR, for a site without the internet
#   credentials  how to read the keys and passwords (they are never printed)
#   uninstall    removes what install made; keeps volumes, and with them the keys of the store; refuses while jobs run
#
# Components, in their order
#   openebs      volumes on folders of the nodes, where the cluster has no storage class
#   s3           the store: Service myminio:9000 and Secret myminio in the namespace kubeflow, bucket kubeflow-examples
#   operator     the Training Operator 1.9.4, for PyTorchJobs alone
#   jobs         namespace train-func: where jobs run, who may submit them, a key for that bucket alone
#   jupyterhub   notebooks with the image and the environment that train_func expects: release my-jupyter in the namespace
#                train-func-hub. One hub is one circle of trust: its users share one account, namespace, Role and key
#
# Options
#   --profile kind|generic|aks|hpk|testbed   what kind of cluster it is; generic
#   --only A,B   --skip A,B                  components to work on; what is left out stays so until --only names it
#   --storage auto|openebs|existing:CLASS|none
#                                            auto: the default class if there is one, else OpenEBS; none: nothing lasts
#   --s3 seaweedfs|minio|external            seaweedfs. No public registry has MinIO's images: S3_IMAGE= names one.
#                                            Of eight writers at once, seaweedfs (1,700 rounds) and minio (200) let one
#                                            win a conditional put.
#                                            external: AWS_ENDPOINT_URL_S3, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
#                                            AWS_REGION; jobs get the same key. Notebooks reach its address; of a name,
#                                            whose addresses change, its port at every address
#   --bundle DIR   take charts and manifests from there (made by: install.sh bundle --bundle DIR, which needs git, helm
#                  and skopeo and says what to do next)
#   --context NAME   required when the kubeconfig has several
#   --timeout 10m    longest wait for each component
#   --dry-run        say what would be done to which objects (render prints them whole)
#   --yes            do not ask
#   --purge          with uninstall: the volumes, their keys and the namespaces with all that lies in them; asks for the
#                    name of the context, also with --yes: a script gives it on standard input
#
# Environment
#   TRAIN_FUNC_IMAGE   image of notebooks and workers, which the nodes can pull: make image
#   S3_IMAGE           image of the store's engine, instead of the one in infra/versions.env; required for --s3 minio
#   IMAGE_REGISTRY     where the nodes pull all other images from, instead of the hosts that infra/versions.env names
#   NOTEBOOK_EGRESS    internet: notebooks reach more than the API server, the store and DNS, as the Hugging Face Hub
#   KUBECONFIG         as for kubectl
#
# Exit codes: 0 done, 2 wrong usage, 3 a prerequisite is missing (nothing was changed), 4 failed, 5 timed out,
# 130 interrupted.
# Needs bash 4.4, GNU sed and coreutils, kubectl 1.30, diff, curl, and for the charts helm 3.18 or 4.
# From a notebook: python -m train_func doctor looks at all that a notebook may see.
set -Eeuo pipefail
((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || { echo "install.sh: bash 4.4 or newer is expected" >&2 && exit 3; }
{ sed --version && date --date @0; } &>/dev/null || { echo "install.sh: GNU sed and coreutils are expected" >&2 && exit 3; }
shopt -s inherit_errexit # a failing line ends a $(...) too
umask 077
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=infra/versions.env
source "$ROOT/infra/versions.env"
for part in report options cluster state bundle render apply releases credentials images others doctor steps uninstall; do
    # shellcheck source=/dev/null
    source "$ROOT/infra/installer/$part.sh"
done
for component in "${COMPONENTS[@]}"; do
    # shellcheck source=/dev/null
    source "$ROOT/infra/$component/component.sh"
done

main() {
    read_options "$@"
    begin_work
    case $COMMAND in
        render) render_all ;;
        bundle) collect_bundle ;;
        doctor) doctor ;;
        status) status ;;
        credentials) tell_credentials ;;
        install | upgrade) install_all ;;
        uninstall) uninstall_all ;;
    esac
}

main "$@"
