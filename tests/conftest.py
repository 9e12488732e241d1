"""Fixtures: each framework, and each way in which a framework differentiates."""

import os
import signal
from contextlib import closing

import pytest
from hypothesis import HealthCheck, settings

from backends import BACKENDS, made
from sphinxes import Forks
from transforms import FIRST_ORDER, SECOND_ORDER

COMMON = {"eager", "compile", "vmap of func.vjp", "tape", "xla", "double backward", "nested tapes"}

# The frameworks' first calls are slow, and a backend has no state that examples could share.
settings.register_profile(
    "gradtricks",
    deadline=None,
    derandomize=True,
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.load_profile("gradtricks")


def pytest_configure(config):
    """Let processes of tests be interrupted, also where a shell began them; refuse a missing device."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.device == "cuda":
        if not os.environ["CUDA_VISIBLE_DEVICES"]:
            del os.environ["CUDA_VISIBLE_DEVICES"]  # empty, it hides all GPUs from the other tests
        if not BACKENDS[config.option.framework]().has_cuda():
            raise pytest.UsageError(
                f"--device cuda must name a device that {config.option.framework} sees; got none; "
                "remedy: leave it out, or install a build for CUDA on a machine with a GPU"
            )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Trace Python, which makes it several times as slow, only where what is measured can be seen to run."""
    coverage = getattr(item.config.pluginmanager.get_plugin("_cov"), "cov_controller", None)
    seen = item.nodeid.startswith(("tests/doctor/", "tests/tricks/", "tests/test_", "src/"))
    if coverage and coverage.started != seen:
        (coverage.resume if seen else coverage.pause)()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call():
    """Take the test's name out of the environment, by which warm processes are told apart."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    return (yield)


def pytest_addoption(parser):
    """Let tensors be elsewhere, killing tests go on for longer, and pictures of pages be stored anew."""
    parser.addoption("--device", choices=("cpu", "cuda"), default="cpu", help="on which tests make tensors")
    parser.addoption("--kills", type=int, default=4, help="processes that lab/test_kills.py kills")
    parser.addoption("--kill-seed", type=int, default=0, help="of the moments at which it does")
    parser.addoption("--new-screens", action="store_true", help="store how book/test_browser.py sees pages")


def pytest_generate_tests(metafunc):
    """Run a test of a suite for each row of the class that inherits it."""
    if "row" in metafunc.fixturenames:
        metafunc.parametrize("row", metafunc.cls.rows, ids=str)


@pytest.fixture(autouse=True, scope="session")
def _device(pytestconfig):
    """Have tensors made on the device that was asked for."""
    if pytestconfig.option.device == "cpu":
        yield
        return
    with made(pytestconfig.option.framework).on("cuda"):
        yield


@pytest.fixture(params=list(BACKENDS))
def backend(request):
    """Each framework that is installed."""
    return made(request.param)


@pytest.fixture
def in_torch():
    """PyTorch, for what only that has."""
    return made("torch")


@pytest.fixture
def in_tensorflow():
    """TensorFlow, for what only that has."""
    return made("tensorflow")


@pytest.fixture(params=FIRST_ORDER, ids=lambda way: way.id)
def way(request):
    """Each way of taking a gradient: eager, compiled, and under every transform of each framework."""
    return request.param(made(request.param.framework))


@pytest.fixture(params=SECOND_ORDER, ids=lambda way: way.id)
def second(request):
    """Each way of taking the gradient of a gradient."""
    return request.param(made(request.param.framework))


@pytest.fixture(params=[way for way in FIRST_ORDER if way.name in COMMON], ids=lambda way: way.id)
def common(request):
    """A handful of the ways, for loops and for derivatives of one's own."""
    return request.param(made(request.param.framework))


@pytest.fixture(params=[way for way in SECOND_ORDER if way.name in COMMON], ids=lambda way: way.id)
def twice(request):
    """The same for the gradient of a gradient."""
    return request.param(made(request.param.framework))


@pytest.fixture
def store(tmp_path):
    """An empty store of runs."""
    from gradtricks.lab.storage.store import Store  # which the tests of the tricks don't need

    return Store(tmp_path / "runs")


@pytest.fixture(scope="session")
def kernels():
    """Warm processes, kept from test to test."""
    from gradtricks.lab.runs.kernels import Kernels

    with closing(Kernels()) as kernels:
        yield kernels


@pytest.fixture
def warm(kernels, monkeypatch):
    """Let commands that run in this process fork from the warm processes of other tests."""
    from gradtricks.lab.runs.kernels import Kernels

    class Lent(Kernels):
        def __init__(self):
            self.__dict__.update(vars(kernels))

        def close(self):
            self._closed = True

    for module in ("runs.local", "commands.publishing"):
        monkeypatch.setattr(f"gradtricks.lab.{module}.Kernels", Lent)


@pytest.fixture(scope="session")
def forks():
    """Sphinx and Jupyter Book, imported once for all tests."""
    pytest.importorskip("jupyter_book")
    with closing(Forks()) as forks:
        yield forks
