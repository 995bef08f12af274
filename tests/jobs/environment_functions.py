"""Functions that look at their environment, and say more of it than they should."""


def tells(parameters):
    import os

    return {name: os.environ.get(name) for name in parameters["names"]}


def leaks(parameters):
    import json
    import os
    import urllib.parse

    values = [os.environ[name] for name in ("HF_TOKEN", "OF_A_TEAM", "A_KEY_OF_LINES")]
    for value in values:
        print("printed:", value)
        print(f"{value!r} {json.dumps(value)} https://host/?key={urllib.parse.quote(value)}")
    for before in (65_000, 65_530, 65_536 + 9, 2 * 65_536):
        os.write(2, b"x" * before + values[0].encode())
        os.write(1, b"\n")
    if parameters["fails"]:
        raise PermissionError(f"refused to {values}")
    return {"values": values, values[0]: 1}
