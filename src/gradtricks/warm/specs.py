"""Kernels that Jupyter knows by name: which are this Python's own, and ours."""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

from gradtricks.warm.provisioner import NAME


def is_own_kernel(name: str) -> bool:
    """Say whether a kernel is what Jupyter starts for this very Python, and this system can fork."""
    try:
        spec = KernelSpecManager().get_kernel_spec(name)
    except NoSuchKernel:
        return False
    program, own = Path(spec.argv[0]), Path(sys.executable)
    # Jupyter puts this Python in place of a name without a folder.
    ours = program.parent == own.parent or (
        program.name == str(program) and program.name.startswith("python")
    )
    return ours and "ipykernel_launcher" in spec.argv and not spec.env and hasattr(os, "fork")


def install(
    name: str = "python3-warm",
    *,
    modules: Iterable[str] = (),
    display_name: str = "Python 3 (warm)",
    user: bool = False,
    prefix: str | None = None,
) -> str:
    """Install a kernel that Jupyter starts in a fork, and return its folder.

    Args:
        name: Of the kernel.
        modules: To be imported before the first fork.
        display_name: As JupyterLab shows it.
        user: Whether it is for the current user alone.
        prefix: Where to install it, such as a virtual environment; None means for the whole system.
    """
    spec = get_kernel_dict() | {"display_name": display_name}
    spec["metadata"] = {
        "debugger": True,
        "kernel_provisioner": {"provisioner_name": NAME, "config": {"modules": list(modules)}},
    }
    with TemporaryDirectory() as folder:
        Path(folder, "kernel.json").write_text(json.dumps(spec, indent=1), encoding="utf-8")
        installed = KernelSpecManager().install_kernel_spec(folder, name, user=user, prefix=prefix)
    return str(installed)
