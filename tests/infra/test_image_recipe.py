"""make image: who builds, under which name, with which packages; and what the Dockerfile says twice."""

import os
import re
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.messages import unnamed
from train_func.wire.layout import image_key

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
STUB = """#!/usr/bin/env bash
[[ $1 == info && " $DEAF " == *" $(basename "$0") "* ]] && exit 1
[[ $1 == info ]] && exit
[[ $1 == run ]] && echo "the list in ${*: -2:1}" && exit
printf '%s\\0' "$(basename "$0")" "$@" >"$TOLD"
echo registry.example/told:1
"""


@pytest.fixture
def told(tmp_path):
    return tmp_path / "told"


@pytest.fixture
def image(tmp_path, told):
    """Runs infra/image.sh with stubs for the builders named."""
    programs = tmp_path / "bin"
    programs.mkdir()

    def run(*builders, **settings):
        for name in builders:
            stub = programs / name
            stub.write_text(STUB)
            stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
        path = f"{programs}:{os.environ['PATH']}"
        environment = {"PATH": path, "HOME": str(tmp_path), "TOLD": str(told), "DEAF": "", **settings}
        return subprocess.run(
            [ROOT / "infra/image.sh"], env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    return run


def arguments(told):
    return told.read_text().rstrip("\0").split("\0")


@pytest.mark.parametrize("name", ["registry.example:5000/lab/mine:7", "mine:7"])
def test_the_list_of_packages_is_kept_where_submit_looks_for_it(image, tmp_path, name):
    home = {"TRAIN_FUNC_HOME": str(tmp_path / "home")}
    done = image("docker", BUILDER="docker", IMAGE=name, **home)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "home" / image_key(name)).read_text() == f"the list in {name}\n"


@pytest.mark.parametrize("builder", ["docker", "podman"])
def test_an_engine_builds_under_the_name_given_and_it_is_printed(image, told, builder):
    done = image(builder, BUILDER=builder, IMAGE="registry.example/mine:7")
    assert (done.returncode, done.stdout) == (0, "registry.example/mine:7\n"), done.stderr
    assert arguments(told) == [
        builder,
        *("build", "--build-arg", "REQUIREMENTS=", "--tag", "registry.example/mine:7", str(ROOT)),
    ]


def test_the_first_engine_that_answers_builds(image, told):
    done = image("docker", "podman", "buildah", DEAF="docker", IMAGE="mine:7")
    assert done.returncode == 0, done.stderr
    assert arguments(told)[0] == "podman"


def test_where_no_engine_answers_that_is_said(image, told):
    done = image("docker", "podman", "buildah", DEAF="docker podman buildah", IMAGE="mine:7")
    assert done.returncode == 1
    assert "docker, podman or buildah" in done.stderr
    assert not told.exists()


def test_a_program_of_ones_own_is_called_and_says_the_name(image, told):
    done = image("mine", BUILDER="mine", IMAGE="mine:7")
    assert (done.returncode, done.stdout) == (0, "registry.example/told:1\n"), done.stderr
    assert arguments(told) == ["mine", str(ROOT), "mine:7", "--build-arg", "REQUIREMENTS="]


def test_packages_of_ones_own_travel_and_change_the_name(image, told, tmp_path):
    wanted = tmp_path / "wanted.txt"
    wanted.write_text("# mine\neinops>=0.8 ; python_version > '3'\n")
    plain = image("docker", BUILDER="docker").stdout
    with_them = image("docker", BUILDER="docker", REQUIREMENTS=str(wanted)).stdout
    assert "REQUIREMENTS=# mine\neinops>=0.8 ; python_version > '3'" in arguments(told)
    for name in (plain, with_them):
        assert re.fullmatch(r"train-func:[0-9a-f]{12}\n", name)
    assert plain != with_them
    assert image("docker", BUILDER="docker").stdout == plain


def test_a_mirror_of_pypi_is_handed_on_unless_it_would_show_a_password(image, told):
    done = image("docker", BUILDER="docker", PIP_INDEX_URL="https://mirror.example/simple")
    given = [f"{name}=https://mirror.example/simple" for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX")]
    assert [argument for argument in arguments(told) if "mirror" in argument] == given, done.stderr
    assert set(re.findall(r"^ARG (\w+)$", DOCKERFILE, re.M)) == {"PIP_INDEX_URL", "UV_DEFAULT_INDEX"}
    told.unlink()
    done = image("docker", BUILDER="docker", PIP_INDEX_URL="https://me:hunter2@mirror.example/simple")
    assert (done.returncode, told.exists()) == (1, False)
    assert unnamed(done.stderr, "PIP_INDEX_URL", "password") == []
    assert "hunter2" not in done.stdout + done.stderr


def test_a_password_that_would_stay_in_the_history_is_refused_unseen(image, told, tmp_path):
    wanted = tmp_path / "wanted.txt"
    wanted.write_text("einops\n--index-url https://me:hunter2@registry.example/simple\n")
    done = image("docker", BUILDER="docker", REQUIREMENTS=str(wanted))
    assert done.returncode == 1
    assert re.search(r"^2$", done.stderr, re.M)
    assert "password" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert not told.exists()


def test_the_tools_of_development_left_out_are_those_of_the_project():
    left_out = re.search(r"printf '%s\\n' (.+) >/build/unwanted", DOCKERFILE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split(r"[=<>\[]", wanted)[0].lower() for wanted in extras["dev"]}
    brought = {"execnet", "mkdocs", "mkdocs-autorefs", "mkdocstrings-python", "griffelib"}  # by them, for nothing else
    assert set(left_out[1].split()) == (names | brought) - {"uv"}, "uv stays: it installs"
