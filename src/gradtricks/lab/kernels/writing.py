"""Notebooks that are never torn: papermill writes them beside, and moves them into place."""

import os
from pathlib import Path

from papermill.iorw import LocalHandler, papermill_io


class WholeFiles(LocalHandler):
    """Local files, each replaced in one step; papermill's own handler knows where papermill was called."""

    def __init__(self, local: LocalHandler) -> None:
        super().__init__()
        self._local = local

    def write(self, buf: str, path: str) -> None:
        """Write a text; what no encoding can write becomes a question mark."""
        target = Path(path)
        if not target.is_absolute():
            folder = self._local.cwd(None)  # papermill's way of asking is to set it
            self._local.cwd(folder)
            target = Path(folder or Path.cwd(), path)
        beside = target.with_name(f"{target.name}.saving")
        super().write(buf.encode(errors="replace").decode(), str(beside))
        os.replace(beside, target)


def write_whole(path: str | None) -> None:
    """Let papermill write a file of this machine so from now on; every file, where the path is absolute."""
    local = papermill_io.get_handler("local")
    if path is not None and papermill_io.get_handler(path) is local:
        papermill_io.register("/" if path.startswith("/") else path, WholeFiles(local))
