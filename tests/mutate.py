"""Judge the tests: take small faults into copies of the sources, one at a time, and see which are found.

    python tests/mutate.py [WORD ...]

Only faults whose name has one of the words, if any are given. It isn't run by ``make test``: it takes ten
minutes. The faults are in ``data/faults.diff``, which says how one is written.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("src", "tests", "experiments", "book", "conftest.py", "pyproject.toml", "_config.yml")
LIMIT_S = 900.0
FRAMEWORKS = "torch", "tensorflow"


class Fault(NamedTuple):
    """One small fault, and the names of the test files that should notice it."""

    name: str
    framework: str
    tests: str
    old: str
    new: str


def faults(text: str) -> Iterator[Fault]:
    """Read the faults in a file of them."""
    for part in text.split("\n@@ ")[1:]:
        head, *lines = part.splitlines()
        old, new = ("\n".join(line[1:] for line in lines if line[:1] == sign) for sign in "-+")
        yield Fault(*head.split(" | "), old, new)


def main(words: list[str]) -> int:
    """Try the faults, say what became of each, and how many were found."""
    text = (ROOT / "tests" / "data" / "faults.diff").read_text()
    chosen = [fault for fault in faults(text) if not words or any(word in fault.name for word in words)]
    found, failing = 0, {}
    with TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in NEEDED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
        for fault in chosen:
            begun = time.monotonic()
            said, names = tried(copy, fault)
            found += said == "found"
            failing.update(dict.fromkeys((fault.framework, name) for name in names))
            say(f"{said:9} {time.monotonic() - begun:4.0f} s  {fault.name}  {' '.join(names)}")
        say(f"{found} of {len(chosen)} faults found")
        for framework in FRAMEWORKS:
            names = [name for of, name in failing if of == framework]
            if names and (code := ran(copy, framework, names).returncode):
                say(f"but of the tests that found them some fail without a fault (exit status {code})")
                return 1
    return 0


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def tried(copy: Path, fault: Fault) -> tuple[str, list[str]]:
    """Run the tests of a fault with it: whether it was found, and by which test."""
    others = {*FRAMEWORKS} - {fault.framework}
    paths = [p for p in (copy / "src").rglob("*.py") if not others.intersection(p.parts)]
    texts = {path: path.read_text() for path in paths}
    places = [path for path, text in texts.items() if fault.old in text]
    if len(places) != 1 or texts[places[0]].count(fault.old) != 1:
        return "no text", [f"its text stands in {len(places)} files"]
    tests = [str(p) for name in fault.tests.split() for p in (copy / "tests").rglob(f"{name}.py")]
    if not tests:
        return "no tests", []
    [place] = places
    place.write_text(texts[place].replace(fault.old, fault.new))
    try:
        output = ran(copy, fault.framework, ["-x", *tests])
    except subprocess.TimeoutExpired:
        return "found", ["(it hung)"]
    finally:
        place.write_text(texts[place])
    lines = [line for line in output.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    failed = [line.partition(" ")[2].partition(" - ")[0] for line in lines]
    return {0: "missed", 1: "found", 2: "found"}.get(output.returncode, f"status {output.returncode}"), failed


def ran(copy: Path, framework: str, arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run tests of the copy in a process of their own."""
    command = [sys.executable, "-m", "pytest", "-q", "--framework", framework, "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    pipes = {"capture_output": True, "text": True, "timeout": LIMIT_S, "check": False}
    return subprocess.run([*command, *arguments], cwd=copy, env=environment, **pipes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
