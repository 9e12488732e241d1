"""The needs of each library in a process that imports it once and forks; a third framework adds a line."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Library:
    """One library's needs.

    Args:
        late: Modules that it imports when it is first used, and that take long; imported with it.
        environment: Variables of the process that imports it, where they aren't set.
        pinned: Variables with which its runs repeat, and are quiet.
        threads: Variables that say how many threads it may use.
        draw: Draws anew, in a fork, what the library drew by chance when it was imported; gets the module.
        may_fork: Whether a process that has imported it can be forked still; gets the module.
        per_fork: Whether each fork has to import it itself.
    """

    late: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    pinned: Mapping[str, str] = field(default_factory=dict)
    threads: tuple[str, ...] = ()
    draw: Callable[[Any], object] | None = None
    may_fork: Callable[[Any], bool] | None = None
    per_fork: bool = False


LIBRARIES: dict[str, Library] = {
    "numpy": Library(
        environment={"OPENBLAS_NUM_THREADS": "1"},  # else it starts threads when it is imported
        draw=lambda numpy: numpy.random.seed(),
    ),
    # Its other generators, and those of TensorFlow and Keras, are made when they are first used.
    "torch": Library(
        late=("torch._dynamo",),
        pinned={
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it, matrix products on a GPU aren't deterministic
            # Threads that spin while they wait quarter the speed of a busy machine.
            "OMP_WAIT_POLICY": "PASSIVE",
        },
        threads=("OMP_NUM_THREADS", "MKL_NUM_THREADS"),
        draw=lambda torch: torch.default_generator.seed(),
        may_fork=lambda torch: not torch.cuda.is_initialized(),
    ),
    "tensorflow": Library(
        late=("keras",),
        pinned={"TF_CPP_MIN_LOG_LEVEL": "3"},
        threads=("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"),
    ),
    "numba": Library(threads=("NUMBA_NUM_THREADS",)),
    "matplotlib": Library(
        late=("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
        environment={"MPLBACKEND": "module://matplotlib_inline.backend_inline"},
    ),
    "matplotlib_inline": Library(per_fork=True),  # it asks the kernel to show figures when it is imported
}


def with_late(modules: Iterable[str]) -> tuple[str, ...]:
    """Add what libraries import late, leave out what each fork imports itself, and sort."""
    tops = {name: LIBRARIES.get(name.partition(".")[0], Library()) for name in modules}
    found = {name for name, library in tops.items() if not library.per_fork}
    return tuple(sorted(found | {late for library in tops.values() for late in library.late}))


def default_environment() -> dict[str, str]:
    """Return the variables that libraries need where nobody has set them."""
    return {name: value for each in LIBRARIES.values() for name, value in each.environment.items()}


def pinned_environment(threads: int) -> dict[str, str]:
    """Return the variables with which runs repeat that may use so many threads."""
    number_of = {name: str(threads) for each in LIBRARIES.values() for name in each.threads}
    pinned = {name: value for each in LIBRARIES.values() for name, value in each.pinned.items()}
    return default_environment() | number_of | pinned


def all_may_fork() -> bool:
    """Say whether no library that this process has imported forbids a fork."""
    return all(each.may_fork(module) for module, each in _imported() if each.may_fork)


def draw_anew() -> None:
    """Draw, in a fork, what libraries drew when they were imported."""
    for module, library in _imported():
        if library.draw:
            library.draw(module)


def forget_per_fork() -> None:
    """Forget, before a fork, the libraries that each fork has to import itself."""
    per_fork = {name for name, library in LIBRARIES.items() if library.per_fork}
    for name in [name for name in sys.modules if name.partition(".")[0] in per_fork]:
        del sys.modules[name]


def _imported() -> list[tuple[Any, Library]]:
    return [(sys.modules[name], library) for name, library in LIBRARIES.items() if sys.modules.get(name)]
