"""Bytes received equal bytes sent, whatever stands in them, and the function computes the same."""

import time

import pytest

from tests.generated_sources import generated_sources, large_source
from tests.shipping import packed, ship
from train_func.wire.source_file import split_lines


@pytest.mark.parametrize("num_sources", [101, pytest.param(1000, marks=pytest.mark.slow)])
def test_generated_sources_arrive_byte_for_byte_and_work(tmp_path, num_sources):
    started = time.process_time()
    for generated in generated_sources(7, num_sources):
        source = packed(tmp_path, generated.data)
        assert ship(source, tmp_path)({}) == generated.returns
        assert (tmp_path / "source.py").read_bytes() == source.text.encode()
        for piece in source.cells["pieces"]:
            assert piece["text"].removesuffix("\n") in generated.text
            shipped = "".join(split_lines(source.text)[piece["first"] - 1 : piece["last"]])
            assert "is_value" in piece or shipped == piece["text"]
    assert time.process_time() - started < 90


def test_the_generator_is_the_same_for_the_same_seed():
    assert list(generated_sources(3, 40)) == list(generated_sources(3, 40))
    assert list(generated_sources(3, 40)) != list(generated_sources(4, 40))
    assert len({generated.text for generated in generated_sources(3, 101)}) == 101


def test_a_large_source_is_loaded(tmp_path):
    generated = large_source(3_000_000)
    (tmp_path / "job").mkdir()
    assert ship(packed(tmp_path, generated.data), tmp_path / "job")({}) == generated.returns
