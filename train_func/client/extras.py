"""How this package gets an extra: from where it was installed itself, because no index has it.

A package that another author publishes under its name on a public index must not be installed for it.
"""

import json
from importlib.metadata import PackageNotFoundError, distribution

_NAME = "train-func"


def pip_install(extra: str) -> str:
    """The command; where nothing tells from where this package came, with the path of a clone left open."""
    try:
        source = json.loads(distribution(_NAME).read_text("direct_url.json") or "{}")  # PEP 610
    except (PackageNotFoundError, ValueError):
        source = {}
    if not (url := source.get("url")):
        return f"pip install '/path/to/train_func[{extra}]', from a clone"
    vcs = source.get("vcs_info", {})
    address = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else url
    return f"pip install '{_NAME}[{extra}] @ {address}'"
