"""What the command line asks for, checked before anything starts."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradtricks.lab.notebooks.schema import ParameterError

if TYPE_CHECKING:
    from gradtricks.lab.runs.schedulers import Scheduler
    from gradtricks.lab.sweeps.plans import Sweep


def plan(
    source: str | Path,
    *,
    grid: Sequence[str] = (),
    zip: Sequence[str] = (),  # noqa: A002  # the word of sweep files
    seeds: int | None = None,
    given: Sequence[str] = (),
    shown: Sequence[str] = (),
    threads: int | None = None,
) -> "Sweep":
    """Plan a sweep as it is asked for on the command line. Nothing is started.

    Args:
        source: A sweep's file, which says everything itself; or a notebook.
        grid: Texts such as ``rate=0.1,0.2``: values that vary freely.
        zip: The same for values that vary together.
        seeds: How many seeds each configuration is run with.
        given: Texts such as ``rate=0.1``: parameters that don't vary.
        shown: Results to draw, such as ``results.loss``; ``loss`` does too.
        threads: Of a run; None leaves it to the file or the notebook.

    Returns:
        What `sweep` takes.

    Raises:
        FileNotFoundError: There is no such file.
        ParameterError: Anything is wrong; all of it is listed.
    """
    from gradtricks.lab.sweeps.files import ENDING
    from gradtricks.lab.sweeps.plans import plan_sweep, read_sweep

    path = Path(source)
    if path.suffix == ".ipynb":
        return plan_sweep(path, grid=grid, zip=zip, seeds=seeds, given=given, threads=threads, shown=shown)
    if not path.name.endswith(ENDING):
        raise ParameterError(f"expected a notebook or a file named NAME{ENDING}; got {path}")
    said = {"--grid": grid, "--zip": zip, "--seeds": seeds, "--set": given, "--show": shown}
    if any(said.values()):
        options = ", ".join(name for name, value in said.items() if value)
        raise ParameterError(
            f"{path}: nothing was run.\nexpected that the file says all that varies; got {options} too; "
            "remedy: write it into the file, or name the notebook instead"
        )
    return read_sweep(path, threads=threads)


def cluster(
    address: str | None,
    ca_file: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
    *,
    plain_tcp: bool = False,
) -> "Scheduler | None":
    """Check what is said of a dask cluster, without asking anybody.

    Args:
        address: Of its scheduler; None means this machine without one.
        ca_file: Certificate of the authority.
        cert: Our certificate.
        key: Its key.
        plain_tcp: Trust the network.

    Returns:
        What `sweep` takes.

    Raises:
        ParameterError: It can't be used.
    """
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
