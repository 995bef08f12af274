"""Image names that no node could pull are found before any node tries."""

import pytest

from train_func.client.placement import image_fault

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "image",
    [
        "train-func:dev",
        "localhost:5000/train-func:dev",
        "ghcr.io/team/train-func:v1.2_3-rc.1",
        "Registry.Example.com:443/a/b__c/d:latest",
        f"ghcr.io/team/train-func@{DIGEST}",
        f"ghcr.io/team/train-func:v1@{DIGEST}",
        "[::1]:5000/train-func:dev",
    ],
)
def test_a_name_with_a_tag_or_a_digest_is_sane(image):
    assert image_fault(image) is None


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("train-func", "has no tag"),
        ("localhost:5000/train-func", "has no tag"),
        ("ghcr.io/Team/train-func:dev", "small letters"),
        ("Team/train-func:dev", "small letters"),
        ("https://ghcr.io/team/train-func:dev", "without https://"),
        ("ghcr.io/team/train-func:", "the tag"),
        ("ghcr.io/team/train-func:-x", "the tag"),
        ("ghcr.io/team/train-func@sha256:12", "64 hexadecimal digits"),
        ("ghcr.io//train-func:dev", "registry/name"),
        ("train func:dev", "registry/name"),
        ("-train:dev", "registry/name"),
        (None, "TRAIN_FUNC_IMAGE"),
        (5, "registry/name"),
    ],
)
def test_an_obviously_wrong_name_is_told_why(image, words):
    assert words in image_fault(image)
    assert image is None or repr(image) in image_fault(image)
