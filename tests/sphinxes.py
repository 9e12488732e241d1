"""Sphinx and Jupyter Book, each call in a fork: to import them takes longer than to build a small book."""

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from tempfile import TemporaryFile


class Forks:
    """A process that has imported Sphinx, and forks for each call of it."""

    def __init__(self):
        command = [sys.executable, __file__]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, program, *arguments):
        """Run `sphinx` or `jupyter-book` in the folder in which we are, as `subprocess.run` would."""
        command = [program, *map(str, arguments)]
        self._server.stdin.write(json.dumps([command, str(Path.cwd())]) + "\n")
        self._server.stdin.flush()
        return subprocess.CompletedProcess(command, *json.loads(self._server.stdout.readline()))

    def close(self):
        """End the process."""
        self._server.communicate()


def call(program, arguments):
    """Call a program's main function, and return its exit status; no page needs a framework."""
    status = called(program, arguments)
    if found := sorted({"torch", "tensorflow"} & sys.modules.keys()):
        sys.stderr.write(f"expected Sphinx to import no framework; it has {', '.join(found)}\n")
    return status or bool(found)


def called(program, arguments):
    """Call it, whatever it imports."""
    from jupyter_book.cli.main import main
    from sphinx.cmd.build import build_main

    try:
        return build_main(arguments) if program == "sphinx" else main(arguments)
    except SystemExit as end:
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1


def serve():
    """Be that process."""

    import gradtricks.book.extension  # noqa: F401

    for line in sys.stdin:
        (program, *arguments), folder = json.loads(line)
        with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
            if not (child := os.fork()):
                os.chdir(folder)
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                sys.exit(call(program, arguments))
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            out.seek(0)
            err.seek(0)
            print(json.dumps([status, out.read(), err.read()]), flush=True)  # noqa: T201


if __name__ == "__main__":
    serve()
