from .commands.overviews import describe as describe
from .commands.overviews import list_experiments as list_experiments
from .commands.overviews import status as status
from .commands.publishing import publish as publish
from .commands.publishing import reproduce as reproduce
from .commands.publishing import reproduce_book as reproduce_book
from .commands.running import SweepResult as SweepResult
from .commands.running import run as run
from .commands.running import sweep as sweep
from .commands.views import plot as plot
from .commands.views import show as show
from .commands.views import table as table
from .figures import use_style as use_style
from .films import record_film as record_film
from .recording import checkpoint_folder as checkpoint_folder
from .recording import record as record
from .recording import record_figure as record_figure
from .recording import record_file as record_file
from .recording import record_varying as record_varying
from .sweeps.sweep import plan_sweep as plan_sweep
from .sweeps.sweep import read_sweep as read_sweep

__all__ = [
    "SweepResult",
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
