# shellcheck shell=bash disable=SC2034,SC2154
# Volumes on folders of the nodes, where the cluster has no storage class: the OpenEBS chart, its hostpath engine alone.
readonly OPENEBS_CLASS=openebs-hostpath
images_of_openebs() { :; }
not_needed_openebs() { [[ $STORAGE == openebs ]] || printf 'volumes come from %s\n' "${STORAGE_CLASS:-nowhere}"; }
render_openebs() { chart_of openebs "$OPENEBS_CHART" "$OPENEBS_CHARTS"; }
install_openebs() { :; }
verify_openebs() { :; }
status_of_openebs() { printf '%s\n' "$(not_needed_openebs)"; }
