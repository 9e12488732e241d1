from .commands.publishing import publish as publish
from .commands.publishing import reproduce as reproduce
from .commands.publishing import reproduce_book as reproduce_book
from .figures import use_style as use_style
from .films import record_film as record_film
from .recording import check_claims as check_claims
from .recording import checkpoint_folder as checkpoint_folder
from .recording import record as record
from .recording import record_figure as record_figure
from .recording import record_file as record_file
from .recording import record_varying as record_varying
from .runs.progress import run as run
from .sweeps.outcomes import SweepResult as SweepResult
from .sweeps.outcomes import sweep as sweep
from .sweeps.overviews import describe as describe
from .sweeps.overviews import list_experiments as list_experiments
from .sweeps.overviews import status as status
from .sweeps.reading import plot as plot
from .sweeps.reading import show as show
from .sweeps.reading import table as table
from .sweeps.sweep import plan_sweep as plan_sweep
from .sweeps.sweep import read_sweep as read_sweep

__all__ = [
    "SweepResult",
    "check_claims",
    "checkpoint_folder",
    "describe",
    "list_experiments",
    "plan_sweep",
    "plot",
    "publish",
    "read_sweep",
    "record",
    "record_figure",
    "record_file",
    "record_film",
    "record_varying",
    "reproduce",
    "reproduce_book",
    "run",
    "show",
    "status",
    "sweep",
    "table",
    "use_style",
]
