"""What the command line asks for, checked before anything starts."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.notebooks.texts import together

if TYPE_CHECKING:
    from gradtricks.lab.runs.schedulers import Scheduler
    from gradtricks.lab.sweeps.plans import Sweep


def plan(
    source: Path, cluster: Sequence[Any], *, threads: int | None, **varied: Sequence[str] | int | None
) -> "tuple[Sweep, Scheduler | None]":
    """Plan a sweep, and check where it is to run; all that is wrong with both is said at once."""
    sweep = partial(_plan, source, threads, {name: value for name, value in varied.items() if value})
    planned, scheduler = together(sweep, partial(_cluster, *cluster))
    return planned, scheduler


def _plan(source: Path, threads: int | None, said: Mapping[str, Any]) -> "Sweep":
    """Plan a sweep: a file says everything itself, of a notebook `plan_sweep` takes what varies."""
    from gradtricks.lab.sweeps.files import ENDING
    from gradtricks.lab.sweeps.plans import plan_sweep, read_sweep

    if source.suffix == ".ipynb":
        return plan_sweep(source, threads=threads, **said)
    if not source.name.endswith(ENDING):
        raise ParameterError(f"expected a notebook or a file named NAME{ENDING}; got {source}")
    if said:
        options = ", ".join({"given": "--set", "shown": "--show"}.get(name, f"--{name}") for name in said)
        raise ParameterError(
            f"{source}: nothing was run.\nexpected that the file says all that varies; got {options} too; "
            "remedy: write it into the file, or name the notebook instead"
        )
    return read_sweep(source, threads=threads)


def _cluster(
    address: str | None, ca_file: Path | None, cert: Path | None, key: Path | None, plain_tcp: bool
) -> "Scheduler | None":
    """Check what is said of a dask cluster, without asking anybody; no address means this machine."""
    from gradtricks.lab.runs.schedulers import Scheduler

    if address is None:
        if ca_file or cert or key or plain_tcp:
            raise ParameterError("expected --scheduler too, which the certificates are for; got none")
        return None
    try:
        found = Scheduler(address, ca_file, cert, key, plain_tcp=plain_tcp)
        found.security()  # reads the certificates
        return found
    except ValueError as error:
        raise ParameterError(str(error)) from error
