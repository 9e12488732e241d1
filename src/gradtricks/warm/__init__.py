"""Warm kernels: stock IPython kernels, forked from a process that has imported what they import.

papermill finds them as its engine ``warm``, and Jupyter as the kernel ``python3-warm``, which is installed by
``python -m gradtricks.warm install``. Whatever process starts kernels keeps the processes that fork, and they
end with it. So a sweep, a loop of ``papermill.execute_notebook`` or an open JupyterLab imports it all once.
A shell that calls ``papermill --engine warm`` again and again pays for the imports each time, as without us:
a process that outlives its caller would have to be found, trusted, aged and ended.

In a fork runs ipykernel's own application, so a notebook's outputs are those of papermill's own engine, with
these exceptions: of what a cell prints, two million characters are kept; an error that IPython only prints,
such as an exception group or an unknown magic, is an error of its cell too; a cell whose kernel died or that
took too long says so; ``exit()`` ends a notebook as ``sys.exit(0)`` does; NumPy's own threads are off unless
``OPENBLAS_NUM_THREADS`` says how many, with which a process can't be forked and each kernel imports all it
needs; and a library that calls ``numpy.random.default_rng()`` without a seed while it is imported draws the
same numbers in all forks. The generators of Python, NumPy and PyTorch themselves are seeded anew in each.

papermill imports this module, and each other one that registers an engine, whenever it is imported itself.
"""

from typing import Any

__all__ = ["WarmEngine"]


class WarmEngine:
    """Executes notebooks in forks; a kernel that isn't this Python's own is left to papermill's engine.

    papermill asks for these three methods. Nothing of papermill is imported before they are called: it is
    just being imported itself when it finds this class.
    """

    @staticmethod
    def execute_notebook(nb: Any, kernel_name: str, **options: Any) -> Any:
        """Execute a parameterized notebook; the options are those of `engine.execute_notebook`."""
        from gradtricks.warm import engine

        return engine.execute_notebook(nb, kernel_name, **options)

    @staticmethod
    def nb_kernel_name(nb: Any, name: str | None = None) -> str:
        """Return the name of a notebook's kernel."""
        from papermill.utils import nb_kernel_name

        return nb_kernel_name(nb, name)

    @staticmethod
    def nb_language(nb: Any, language: str | None = None) -> str:
        """Return the name of a notebook's language."""
        from papermill.utils import nb_language

        return nb_language(nb, language)
