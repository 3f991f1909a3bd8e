"""Images as sequences: orders, scales, held-out images, part sets and damaged files, on files that the tests write."""

import gzip
import hashlib
import struct

import numpy as np
import pytest
import torch
from small_sets import cifar_records, idx, images

from holdfast.data import MissingDataError, load_task
from holdfast.data._cifar10 import read_batch
from holdfast.data._download import DataFile
from holdfast.data._mnist import FILES, read_idx
from holdfast.errors import ArgumentError, DamagedResultError


def every(task, split):
    return task.batch(split, torch.arange(task.size(split)))


def test_pixels_follow_each_other_row_after_row(root):
    found = every(load_task("mnist", valid=0), "test")
    pixels, labels = images(5, 5)
    assert torch.equal(found.inputs, torch.from_numpy(pixels).reshape(5, 784, 1).float() / 255)
    assert found.targets.tolist() == labels.tolist()


def test_rows_are_steps_and_a_permutation_is_the_same_for_all_images(root):
    pixel = every(load_task("mnist", valid=0), "train").inputs
    row = every(load_task("mnist", valid=0, order="row"), "train").inputs
    assert torch.equal(row, pixel.reshape(12, 28, 28))
    permuted = load_task("mnist", valid=0, order="permuted")
    mixed = every(permuted, "train").inputs
    order = torch.tensor([int((pixel == mixed[:, step : step + 1]).all(0).nonzero()[0, 0]) for step in range(784)])
    assert torch.equal(order.sort().values, torch.arange(784)) and not torch.equal(order, torch.arange(784))
    test = every(load_task("mnist", valid=0), "test").inputs
    assert torch.equal(every(permuted, "test").inputs, test[:, order])
    other = load_task("mnist", valid=0, order="permuted", permutation_seed=1)
    assert not torch.equal(every(other, "train").inputs, mixed)


def test_standard_scale_takes_mean_and_deviation_of_each_colour(root):
    unit = every(load_task("cifar10", valid=0), "test").inputs
    standard = every(load_task("cifar10", valid=0, scale="standard"), "test").inputs
    mean, deviation = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    assert torch.allclose(standard, (unit - mean) / deviation)
    rows = every(load_task("cifar10", valid=0, scale="standard", order="row"), "test").inputs
    assert torch.equal(rows, standard.reshape(3, 32, 96))


def test_held_out_images_are_always_the_same_and_the_splits_are_all_images(root):
    task = load_task("mnist", valid=4)
    whole = every(load_task("mnist", valid=0), "train").inputs
    parts = torch.cat([every(task, "train").inputs, every(task, "valid").inputs])
    assert {tuple(x) for x in parts[..., 0].tolist()} == {tuple(x) for x in whole[..., 0].tolist()}
    fewer = every(load_task("mnist", valid=2), "valid").inputs
    assert all(bool((every(task, "valid").inputs == image).all((1, 2)).any()) for image in fewer)
    for valid in (-1, 12):
        with pytest.raises(ArgumentError, match="valid must be from 0 to 11"):
            load_task("mnist", valid=valid)


def test_colours_of_cifar_are_planes_in_the_file_and_features_in_a_step(root):
    records = cifar_records(3, 2)
    found = every(load_task("cifar10", valid=0), "test")
    assert found.targets.tolist() == records[:, 0].tolist()
    planes = torch.from_numpy(records[:, 1:].reshape(3, 3, 1024)).float() / 255
    assert torch.equal(found.inputs, planes.mT)
    grey = every(load_task("cifar10", valid=0, grey=True), "test").inputs
    weights = torch.tensor([0.299, 0.587, 0.114])
    assert float((grey[..., 0] - found.inputs @ weights).abs().max()) < 0.51 / 255  # brightness is rounded to a byte


def test_a_part_of_cifar_is_used_and_named(root):
    task = load_task("cifar10", valid=1)
    assert task.size("train") == 7
    part = "8 of 50,000 training images and 3 of 10,000 test images"
    assert task.describe().endswith(f"part: {part}") and task.identity()["part"] == part
    (root / "cifar10" / "data_batch_3.bin").write_bytes(cifar_records(2, 9).tobytes())
    assert load_task("cifar10", valid=0).size("train") == 10
    with pytest.raises(
        MissingDataError, match=r"lacks data_batch_2.bin, data_batch_4.bin, data_batch_5.bin, and download"
    ):
        load_task("cifar10", part=False, download=False)
    (root / "cifar10" / "test_batch.bin").unlink()
    with pytest.raises(MissingDataError, match=r"test_batch\.bin.*both train and test are needed"):
        load_task("cifar10")


def test_files_unpacked_with_their_own_folder_are_found(root):
    inner = root / "cifar10" / "cifar-10-batches-bin"
    inner.mkdir()
    for name in ("data_batch_1.bin", "test_batch.bin"):
        (root / "cifar10" / name).rename(inner / name)
    assert load_task("cifar10", valid=0).size("train") == 8


@pytest.mark.parametrize("content", [b"", bytes(3072), bytes(3073 * 2 + 1), bytes(3073 * 10_001)])
def test_a_file_that_is_no_whole_number_of_images_is_refused(tmp_path, content):
    (tmp_path / "x.bin").write_bytes(content)
    with pytest.raises(DamagedResultError, match="truncated or another file"):
        read_batch(tmp_path / "x.bin")


def test_a_label_that_is_no_class_is_refused_with_its_place(root, monkeypatch):
    records = cifar_records(4, 0)
    records[2, 0] = 10
    (root / "cifar10" / "data_batch_1.bin").write_bytes(records.tobytes())
    with pytest.raises(DamagedResultError, match=r"data_batch_1\.bin: expected labels from 0 to 9, got 10 at image 2"):
        load_task("cifar10")
    set_mnist(root, monkeypatch, np.zeros((3, 28, 28)), np.array([1, 77, 3]))
    with pytest.raises(DamagedResultError, match="got 77 at image 1"):
        load_task("mnist", valid=0)


def set_mnist(root, monkeypatch, *arrays):
    """Makes these the test images and labels of MNIST, checksums included."""
    contents = [idx(array) for array in arrays]
    files = [
        DataFile(file.name, hashlib.sha256(content).hexdigest(), len(content), ("",))
        for file, content in zip(FILES["test"], contents, strict=True)
    ]
    for file, content in zip(files, contents, strict=True):
        (root / "mnist" / file.name).write_bytes(gzip.compress(content))
    monkeypatch.setitem(FILES, "test", tuple(files))


def test_images_without_a_label_each_are_refused(root, monkeypatch):
    set_mnist(root, monkeypatch, np.zeros((3, 28, 28)), np.zeros(2))
    with pytest.raises(DamagedResultError, match=r"got shapes \(3, 28, 28\) in .* and \(2,\) in"):
        load_task("mnist", valid=0)


def test_a_header_that_promises_a_trillion_images_allocates_nothing():
    header = struct.pack(">BBBB3I", 0, 0, 8, 3, 2**20, 2**20, 1)
    with pytest.raises(DamagedResultError, match=r"for the shape \(1048576, 1048576, 1\) of its header, got 9;"):
        read_idx(header + bytes(9), "some.gz")


def test_a_seed_for_an_order_that_has_none_is_refused(root):
    with pytest.raises(ArgumentError, match="only with order='permuted'"):
        load_task("mnist", valid=0, permutation_seed=3)
