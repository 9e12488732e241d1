"""The lab: rerun, sweep and reproduce notebooks, and keep what they found.

A notebook calls `record`, `record_varying`, `record_figure`, `record_file` and `checkpoint_folder`. The other
functions are those behind the commands; ``gradtricks --help`` shows them. Each name is imported when it is
first used, so that what a run depends on, which its record lists, holds nothing of the lab but `record`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
