"""Each framework's agents, and the command, which needs no process of its own."""

import pytest
from typer.testing import CliRunner

from gradtricks.agents import load
from gradtricks.cli import app


@pytest.fixture
def agents(backend):
    """The agents of each framework, on one thread: beside other tests, threads cost more than they bring."""
    if backend.name == "torch":
        backend.framework.set_num_threads(1)
    return load(backend.name)


@pytest.fixture
def gradtricks():
    """Run the command in this process, and return what it printed; an unexpected error is raised."""

    def invoke(*arguments, **environment):
        words = list(map(str, arguments))
        return CliRunner(env=environment).invoke(app, words, catch_exceptions=False)

    return invoke
