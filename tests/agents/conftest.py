"""Each framework's agents, on one thread: beside other tests, threads that wait cost more than they bring."""

import importlib

import pytest


@pytest.fixture(params=["torch", "tensorflow"])
def agents(request):
    framework = pytest.importorskip(request.param)
    if request.param == "torch":
        framework.set_num_threads(1)
    return importlib.import_module(f"gradtricks.agents.{request.param}")
