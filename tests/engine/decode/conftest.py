"""Fixtures of the decoder: random models on a device, and the plain program of their equations."""

import importlib.util

import pytest

from mgpu_ngram.core.nmt.files import load_nmt_model
from mgpu_ngram.engine.memory.copies import to_device_fast


@pytest.fixture
def random_model(random_tensors, save_model):
    """Return random_model(seed, ...): a small model."""
    return lambda seed=0, **kind: load_nmt_model(save_model(random_tensors(seed, **kind), f"model{seed}"))


@pytest.fixture
def placed(device):
    """Return placed(model): the model on the device of the test."""
    return lambda model: model.map_arrays(lambda array: to_device_fast(array, device))


@pytest.fixture(scope="session")
def oracle(shared_data):
    """Return the module of the plain decoder from the equations."""
    spec = importlib.util.spec_from_file_location("nematus_ref", shared_data.parent / "oracles" / "nematus_ref.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
