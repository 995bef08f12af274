"""Batches of images: to train on, cut out and mirrored by the place in the plan; else as in a pipeline."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image
from transformers import ViTImageProcessorPil

from tests.distributed import small
from tests.messages import unnamed
from tests.tiny_images import encoded, image_of
from train_func.errors import InvalidInput
from train_func.worker.tasks.image_decoding import LEAST_AREA, ImageCollator, cut_out, decode, shape_of
from train_func.worker.training.loader import PlanLoader, seed_for
from train_func.worker.training.steps import micro_batch_of
from train_func.worker.training.weighing import Items

SIZE = 24


@pytest.fixture(scope="module")
def processor():
    return ViTImageProcessorPil(size={"height": SIZE, "width": SIZE})


def stored(num_rows):
    images = [encoded(image_of(number)[0]) for number in range(num_rows)]
    return [{"pixel_values": {"bytes": data, "path": None}, "label": at % 3} for at, data in enumerate(images)]


def batch_at(collator, step, micro, num_rows=7):
    seed_for("collate", 5, step, micro)
    return collator(stored(num_rows))["pixel_values"]


def test_what_is_drawn_depends_on_the_place_in_the_plan_alone(processor):
    collator = ImageCollator(processor, augment=True)
    first = batch_at(collator, 3, 1)
    batch_at(collator, 4, 0)
    np.random.random_sample(17)
    assert torch.equal(batch_at(ImageCollator(processor, augment=True), 3, 1), first)
    assert not torch.equal(batch_at(collator, 3, 2), first)
    assert not torch.equal(batch_at(collator, 4, 1), first)


def test_a_large_photo_to_train_on_is_decoded_at_a_fraction_of_its_size_and_held_out_whole(processor):
    ramp = np.linspace(0, 250, 1600).astype(np.uint8)
    photo = encoded(Image.fromarray(np.broadcast_to(ramp[None, :, None], (1200, 1600, 3)).copy()), "JPEG")
    assert decode(photo, "a").size == (1600, 1200)
    for suffices, size in ((2 * SIZE, (200, 150)), (150, (200, 150)), (151, (400, 300)), (1201, (1600, 1200))):
        assert decode(photo, "a", suffices).size == size
    rows = [{"pixel_values": {"bytes": photo, "path": None}}]
    made = []
    for _ in range(2):
        seed_for("collate", 5, 3, 1)
        made.append(ImageCollator(processor, augment=True)(rows)["pixel_values"])
    assert torch.equal(*made)
    seed_for("collate", 5, 3, 1)
    part = cut_out(decode(photo, "a", 2 * SIZE), (SIZE, SIZE), processor.resample)
    expected = processor(images=part, return_tensors="pt", do_resize=False)["pixel_values"]
    assert torch.equal(made[0], expected)
    held_out = ImageCollator(processor, augment=False)(rows)["pixel_values"]
    assert torch.equal(held_out, processor(images=decode(photo, "a"), return_tensors="pt")["pixel_values"])


def test_held_out_images_are_as_the_processor_makes_them_at_every_place(processor):
    collator = ImageCollator(processor, augment=False)
    expected = processor(images=[image_of(number)[0] for number in range(7)], return_tensors="pt")["pixel_values"]
    for place in ((0, 0), (3, 1)):
        assert torch.equal(batch_at(collator, *place), expected)


@pytest.mark.parametrize("size", [(40, 40), (101, 7), (1, 300), (1, 1), (640, 480)])
def test_a_part_of_any_image_has_the_shape_of_the_model_and_shows_enough_of_it(size):
    column = np.arange(size[0], dtype=np.uint8) % 250
    image = Image.fromarray(np.broadcast_to(column[None, :, None], (size[1], size[0], 3)).copy())
    for step in range(20):
        seed_for("collate", 0, step, 0)
        part = cut_out(image, (SIZE, 2 * SIZE))
        assert part.size == (2 * SIZE, SIZE)


def test_parts_are_large_enough_and_half_of_them_are_mirrored():
    ramp = np.linspace(0, 250, 100).astype(np.uint8)
    image = Image.fromarray(np.broadcast_to(ramp[None, :, None], (100, 100, 3)).copy())
    mirrored, widths = 0, []
    for step in range(200):
        seed_for("collate", 0, step, 0)
        row = np.asarray(cut_out(image, (SIZE, SIZE)))[0, :, 0].astype(int)
        mirrored += row[0] > row[-1]
        widths.append(abs(row[0] - row[-1]) / 250)
    assert 70 < mirrored < 130
    assert min(widths) > LEAST_AREA**0.5 / (4 / 3) ** 0.5 - 0.1
    assert max(widths) > 0.9


def test_a_processor_that_keeps_the_proportions_of_images_is_refused():
    with pytest.raises(InvalidInput, match="ViTImageProcessor") as caught:
        shape_of(ViTImageProcessorPil(size={"shortest_edge": SIZE}))
    assert caught.value.cause == "model"


@pytest.mark.parametrize("columns", [["label"], ["label", "x"]])
def test_rows_without_images_are_refused_with_what_forward_has_to_take(processor, columns):
    with pytest.raises(InvalidInput) as refused:
        ImageCollator(processor, augment=True)([dict.fromkeys(columns, 0)])
    assert refused.value.cause == "code"
    assert unnamed(refused.value, "label", "forward", "pixel_values") == []


def batches_of(processor, rows, num_workers):
    """Those of a plan of one epoch."""
    plan = small.plan(Dataset.from_list(rows), 4, 2, 2)
    collator = ImageCollator(processor, augment=True)
    loader = PlanLoader(plan, collator, num_workers=num_workers, pin_memory=False)
    return [micro_batch_of(place, batch, Items()).batch for place, batch in loader]


def test_processes_that_load_make_the_same_batches(processor):
    own, theirs = (batches_of(processor, stored(7), num_workers) for num_workers in (0, 2))
    assert len(own) == len(theirs) == 4
    for one, other in zip(own, theirs, strict=True):
        assert torch.equal(one["pixel_values"], other["pixel_values"])
        assert torch.equal(one["labels"], other["labels"])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_image_that_is_bad_keeps_its_cause_in_a_process_that_loads(processor, num_workers):
    rows = stored(7)
    rows[3]["pixel_values"] = {"bytes": b"none", "path": "bars/003.png"}
    with pytest.raises(InvalidInput, match=r"bars/003\.png") as refused:
        batches_of(processor, rows, num_workers)
    assert refused.value.cause == "data"
    assert "Traceback" not in str(refused.value)
