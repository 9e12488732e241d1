"""The lab: rerun a notebook, and keep what it found.

A notebook calls `record` and `record_figure`; ``gradtricks run`` and ``gradtricks book`` (see
``gradtricks --help``) execute notebooks, keep the records and publish them.
"""

from gradtricks.lab.recording import record, record_figure, use_style

__all__ = ["record", "record_figure", "use_style"]
