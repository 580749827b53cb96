"""Loading checkpoints: the types that fairseq saves are read, anything else is refused and never run."""

import argparse
import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch

from fairseq_entmax.checkpoints import allow_fairseq_checkpoints, torch_loads_safely

allow_fairseq_checkpoints()

# torch before 2.6 cannot refuse anything (`doctor` says so there); the refusals are tested wherever they exist.
REFUSES = torch_loads_safely()


class Foreign:
    """A type that no fairseq checkpoint holds."""


class MakesFolder:
    """Pickles to a call, as a malicious file would."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def round_trip(value, tmp_path):
    torch.save({"model": {"weight": torch.ones(2)}, "value": value}, tmp_path / "checkpoint.pt")
    return torch.load(tmp_path / "checkpoint.pt", map_location="cpu")["value"]


def rename_module(path, old, new):
    """Makes the pickle in a checkpoint name another module, as another numpy would have written it."""
    with zipfile.ZipFile(path) as archive:
        content = {item: archive.read(item) for item in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for item, data in content.items():
            changed = data.replace(f"c{old}\n".encode(), f"c{new}\n".encode())
            assert (changed != data) == item.endswith("data.pkl")
            archive.writestr(item, changed)


def test_case_23_settings_come_back(tmp_path):
    settings = argparse.Namespace(arch="lstm_entmax", lr=[0.001], user_dir=None)
    assert round_trip(settings, tmp_path) == settings


@pytest.mark.parametrize("code", list("?bBhHiIlLqQefd"))
def test_case_23_arrays_and_scalars_of_every_number_type_come_back(code, tmp_path):
    array = np.array([0, 1, 1], dtype=code)
    loaded = round_trip([array, array[1]], tmp_path)
    assert loaded[0].dtype == array.dtype and loaded[0].tolist() == array.tolist()
    assert loaded[1] == array[1] and loaded[1].dtype == array.dtype


def test_case_23_files_of_the_other_numpy_load(tmp_path):
    """numpy 1 writes `numpy.core.multiarray`, numpy 2 `numpy._core.multiarray`."""
    names = ["numpy.core.multiarray", "numpy._core.multiarray"]
    mine, other = names[::-1] if int(np.__version__.split(".")[0]) >= 2 else names
    torch.save({"counts": np.arange(3)}, tmp_path / "checkpoint.pt")
    rename_module(tmp_path / "checkpoint.pt", mine, other)
    if REFUSES:  # older torch imports by name, which numpy 1 cannot do for numpy 2's names
        assert torch.load(tmp_path / "checkpoint.pt")["counts"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("load", [lambda path: torch.load(path), lambda path: torch.load(path, map_location="cpu")])
def test_a_foreign_type_is_refused_by_name(load, tmp_path):
    torch.save({"value": Foreign()}, tmp_path / "checkpoint.pt")
    if not REFUSES:
        assert isinstance(load(tmp_path / "checkpoint.pt")["value"], Foreign)
        return
    with pytest.raises(pickle.UnpicklingError, match=r"test_checkpoints\.Foreign"):
        load(tmp_path / "checkpoint.pt")


def test_a_malicious_file_does_not_run(tmp_path):
    torch.save({"value": MakesFolder(str(tmp_path / "trap"))}, tmp_path / "checkpoint.pt")
    if not REFUSES:
        return
    with pytest.raises(pickle.UnpicklingError, match="mkdir"):
        torch.load(tmp_path / "checkpoint.pt")
    assert not (tmp_path / "trap").exists()


def test_arrays_of_objects_are_refused(tmp_path):
    """They are the way by which numpy would unpickle anything; fairseq saves none."""
    torch.save({"value": np.array([argparse.Namespace()], dtype=object)}, tmp_path / "checkpoint.pt")
    if REFUSES:
        with pytest.raises(pickle.UnpicklingError, match="dtype"):
            torch.load(tmp_path / "checkpoint.pt")


def test_the_restriction_is_not_switched_off():
    assert "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" not in os.environ
    buffer = io.BytesIO()
    torch.save(Foreign(), buffer)
    buffer.seek(0)
    if REFUSES:
        with pytest.raises(pickle.UnpicklingError):
            torch.load(buffer)
