"""What a container image may be called, before anybody tries to pull it."""

import re

_DOMAIN = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::\d+)?"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"(?:(?P<domain>{_DOMAIN})/)?{_PART}(?:/{_PART})*")
_TAG = re.compile(r"\w[\w.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
WANTED = "'registry/name:tag' or 'registry/name@sha256:...' is expected"


def image_fault(image: str) -> str | None:
    """Why no node could pull ``image`` under that name, or would pull now one and now another; None when it is sane."""
    given = f"image={image!r}"
    if "://" in image:
        return f"{given}: {WANTED}, without {image.partition('://')[0]}://"
    rest, _, digest = image.partition("@")
    if digest and not _DIGEST.fullmatch(digest):
        return f"{given}: the digest {digest!r} is none: sha256: and 64 hexadecimal digits are expected"
    name, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:  # that colon stands before the registry's port
        name, colon, tag = rest, "", ""
    if colon and not _TAG.fullmatch(tag):
        return f"{given}: the tag {tag!r} is none: letters, digits, '.', '_' and '-' are expected, at most 128"
    if not _NAME.fullmatch(name):
        capital = ": its name has to be of small letters" if name != name.lower() else ""
        return f"{given}: no image can be called so{capital}; {WANTED}"
    if not tag and not digest:
        return f"{given}: it has no tag, so that every node may pull another one; {WANTED}"
    return None
