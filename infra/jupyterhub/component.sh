# shellcheck shell=bash disable=SC2034,SC2154
images_of_jupyterhub() { :; }
not_needed_jupyterhub() { :; }
render_jupyterhub() { chart_of jupyterhub "$JUPYTERHUB_CHART" "$JUPYTERHUB_CHARTS"; }
install_jupyterhub() { :; }
verify_jupyterhub() { :; }
status_of_jupyterhub() { :; }
