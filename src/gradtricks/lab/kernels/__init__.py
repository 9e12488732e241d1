"""papermill's engine "warm": cells run in a fork of a process that has imported what they import.

Whatever process calls papermill keeps the processes that fork, and they end with it. So a sweep, or a loop of
``papermill.execute_notebook``, imports a framework once. A shell that calls ``papermill --engine warm`` again
and again pays for the imports each time, as without us: a process that outlives its caller would have to be
found, trusted, aged and ended, and somebody who runs often enough to gain from that has ``gradtricks sweep``.

A notebook's outputs are those of papermill's own engine, with these exceptions: widgets show no more than
their text, since nobody is there to move them; a cell prints two million characters at most; what libraries
print past Python goes to standard error; and NumPy's own threads are off unless ``OPENBLAS_NUM_THREADS`` says
how many, with which a process can't be forked and each run imports all it needs.

papermill imports this module, and each other one that registers an engine, whenever it is imported itself.
"""

from typing import Any

__all__ = ["INJECTED", "RECORDING", "WarmEngine"]

RECORDING = "gradtricks.lab.recording"  # the one module of this package that may be there before a fork
INJECTED = "injected-parameters"  # the tag of the cell that sets a notebook's parameters


class WarmEngine:
    """Executes notebooks in forks; what isn't of this Python's own kernel is left to papermill's engine.

    papermill asks for these three methods. Nothing of papermill is imported before they are called: it is
    just being imported itself when it finds this class.
    """

    @staticmethod
    def execute_notebook(nb: Any, kernel_name: str, **options: Any) -> Any:
        """Execute a parameterized notebook; the options are those of `cells.execute_cells`."""
        from gradtricks.lab.kernels import cells

        return cells.execute_cells(nb, kernel_name, **options)

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
