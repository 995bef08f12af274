"""Notebook 05 runs headless from its first cell to its last, and learns the shapes that are shipped."""

import re
import runpy

import pyarrow.parquet as parquet
import pytest

from tests.contracts.test_notebooks import ROOT
from tests.notebooks.executing import errors, execute, home_in, pictures

NOTEBOOK = ROOT / "notebooks/05_images.ipynb"
SHIPPED = ROOT / "notebooks/data/shapes.parquet"


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The folder of its home, and what the notebook showed."""
    folder = tmp_path_factory.mktemp("notebook")
    with home_in(folder):
        return folder, execute(NOTEBOOK, folder / "0.ipynb", workers=1)


def test_more_than_nine_in_ten_of_the_held_out_images_are_right(executed):
    _, first = executed
    assert "240 rows to train on, 60 held out; classes: circle, square, star, triangle" in first
    (accuracy,) = re.findall(r"^accuracy: (\d\.?\d*)$", first, re.M)
    assert float(accuracy) > 0.9
    (right,) = re.findall(r"^right: (\d+) of 60 held-out images", first, re.M)
    assert int(right) / 60 == pytest.approx(float(accuracy), abs=1e-3)  # asked one by one, and by the published model
    assert "each of 240 rows was used exactly once in epochs 1 to 20" in first


def test_it_shows_images_the_curves_and_what_is_taken_for_what(executed):
    folder, first = executed
    num_rows_of_images = 2 if "wrong ones" in first else 1
    assert len(pictures(folder / "0.ipynb")) == num_rows_of_images + 2


def test_it_shows_nothing_red(executed):
    folder, _ = executed
    assert errors(folder / "0.ipynb") == []


def test_the_shipped_images_are_what_their_program_draws(tmp_path):
    drawn = runpy.run_path(str(SHIPPED.with_name("draw_shapes.py")))
    drawn["write"](tmp_path / "shapes.parquet")
    assert parquet.read_table(tmp_path / "shapes.parquet").equals(parquet.read_table(SHIPPED))
    assert SHIPPED.stat().st_size < 400_000
