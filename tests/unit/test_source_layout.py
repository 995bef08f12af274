"""The packed module: every piece byte for byte, in an order that works, with a map back to where each line stands."""

import inspect
import traceback

import pytest

from tests.shipping import imported, packed, ship
from train_func.client.source import locate, pack
from train_func.wire.source_file import CODING, split_lines

TEXT = '''
    """The module's own docstring stays here."""
    from __future__ import annotations
    import json, os  # two at once
    import unused_by_the_function_but_there as nothing


    RATE = 1e-3   # odd   spacing
    NOT_USED = 1; SIZES = [1,
        2]  # over two lines


    def broken(x):
        y = x + 1
        raise ValueError(json.dumps(
            SIZES))


    class Config: rate: float = RATE


    # a comment above is not part of the piece
    @staticmethod
    def train_func(parameters):

        config = Config()
        return broken(config.rate)
'''


@pytest.fixture
def source(tmp_path):
    (tmp_path / "unused_by_the_function_but_there.py").write_text("")
    text = inspect.cleandoc(TEXT).replace("import unused_by_the_function_but_there as nothing\n", "")
    return packed(tmp_path, text.replace("@staticmethod\n", ""))


def test_the_text_holds_the_pieces_and_nothing_else_of_the_file(source):
    body = "".join(split_lines(source.text)[2:])
    assert (
        body
        == inspect.cleandoc("""
        from __future__ import annotations
        import json, os
        RATE = 0.001
        SIZES = [1, 2]


        def broken(x):
            y = x + 1
            raise ValueError(json.dumps(
                SIZES))


        class Config: rate: float = RATE


        def train_func(parameters):

            config = Config()
            return broken(config.rate)
    """)
        + "\n"
    )
    assert source.text.startswith(CODING)


def test_the_map_gives_each_line_its_origin(source):
    lines = split_lines(source.text)
    for piece in source.cells["pieces"]:
        shipped = "".join(lines[piece["first"] - 1 : piece["last"]])
        assert shipped == piece["text"] or piece["text"].startswith(("RATE", "NOT_USED", "SIZES"))
        assert piece["origin"].startswith("written_")
    where = {piece["text"].split("(")[0].split(" =")[0].strip(): piece["line"] for piece in source.cells["pieces"]}
    assert (where["RATE"], where["SIZES"], where["def broken"], where["def train_func"]) == (6, 7, 11, 21)


def test_the_hash_the_name_and_the_imports_are_told(source):
    import hashlib

    assert source.sha256 == hashlib.sha256(source.text.encode()).hexdigest() == source.cells["sha256"]
    assert source.function == source.cells["function"] == "train_func"
    assert tuple(source.imports) == ("json", "os")


def test_a_traceback_is_translated_to_the_lines_a_person_wrote(source, tmp_path):
    function = ship(source, tmp_path)
    with pytest.raises(ValueError, match="1, 2") as raised:
        function({})
    text = "".join(traceback.format_exception(raised.value))
    assert f'File "{tmp_path}/source.py", line' in text
    origin = source.cells["pieces"][0]["origin"]
    assert locate(source.cells, text) == [
        (origin, 24, "return broken(config.rate)"),
        (origin, 13, "raise ValueError(json.dumps("),
    ]


def test_frames_of_other_files_called_source_are_left_out(source):
    text = '  File "/lib/other/source.py", line 5, in f\n    something_else()\n'
    assert locate(source.cells, text) == []
    text = '  File "/lib/other/resource.py", line 5, in f\n    RATE = 1e-3   # odd   spacing\n'
    assert locate(source.cells, text) == []


def test_a_frame_without_a_quoted_line_is_placed_by_its_number(source):
    origin = source.cells["pieces"][0]["origin"]
    assert locate(source.cells, 'File "/etc/train-func/source.py", line 5, in <module>\n') == [
        (origin, 6, "RATE = 1e-3")
    ]
    assert locate(source.cells, 'File "/etc/train-func/source.py", line 1, in <module>\n') == []


def test_the_same_text_gives_the_same_bytes_wherever_it_stands(tmp_path):
    text = "import os\nA = 1\ndef b(): return A\ndef train_func(p): return b(), os\n"
    moved = "# a comment\n\n" + text.replace("def b", "# more\n\n\ndef b") + "print\n"
    assert packed(tmp_path, text).text == packed(tmp_path, moved).text


def test_another_text_gives_another_hash(tmp_path):
    one = packed(tmp_path, "A = 1\ndef train_func(p): return A\n")
    other = packed(tmp_path, "A = 2\ndef train_func(p): return A\n")
    assert one.sha256 != other.sha256


def test_an_indented_function_travels_without_a_change_of_its_strings(tmp_path):
    text = "def outer():\n\n\t@keep\n\tdef train_func(p):\n\t\treturn '''a\n\tb\nc'''\n\treturn train_func\n"
    with imported(tmp_path, "def keep(f): return f\n" + text) as module:
        source = pack(module.outer())
    assert "\t@keep\n\tdef train_func(p):\n\t\treturn '''a\n\tb\nc'''\n" in source.text
    assert ship(source, tmp_path)({}) == "a\n\tb\nc"
    assert source.cells["pieces"][-1]["line"] == 4


def test_what_is_needed_at_once_comes_first_even_if_it_was_written_later(tmp_path):
    text = """
        def train_func(p): return make()
        class B(A_LATER := object): pass
        def make(): return Z
        def helper(f): return DEEP and f
        DEEP = 1
        @helper
        def Z(): return 2
    """
    with imported(
        tmp_path, inspect.cleandoc(text).replace("DEEP = 1\n", "").replace("def train", "DEEP = 1\ndef train")
    ) as m:
        source = pack(m.train_func)
    assert source.text.index("DEEP = 1") < source.text.index("@helper")
    assert ship(source, tmp_path)({})() == 2


def test_a_function_of_a_test_or_a_script_leaves_the_rest_of_its_file_behind(tmp_path):
    text = """
        import sys
        def train_func(p): return p
        raise_if_executed_again = sys.modules.setdefault("executed", []).append(1)
        if __name__ == "__main__":
            raise SystemExit
    """
    source = packed(tmp_path, inspect.cleandoc(text))
    assert "".join(split_lines(source.text)[2:]) == "def train_func(p): return p\n"


def test_functions_called_differently_keep_their_name(tmp_path):
    source = packed(tmp_path, "def fit(parameters): return parameters['x']\n", "fit")
    assert source.function == "fit"
    assert ship(source, tmp_path)({"x": 3}) == 3
