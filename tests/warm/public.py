"""Compare public notebooks under the engine "warm" with papermill's own: a script beside the tests.

    git clone https://github.com/OWNER/NAME CLONES/OWNER+NAME    # each of the list, at the list's commit
    pip install ipywidgets seaborn                               # some notebooks import these
    python tests/warm/public.py CLONES RESULTS.jsonl [OWNER/NAME ...]

The list, `tests/data/public_notebooks.tsv`, is every notebook that lies in one of sixteen folders, and none
was left out: those that want a network, another package or another language have to fail alike. A notebook
runs in a fresh copy of its folder with an empty home, with each engine; where the two differ, once more with
papermill's own, and what differs between those two by itself (times, random numbers) isn't held against warm.

A result is a line of RESULTS.jsonl. Killed, the script goes on where it was. It exits with 1 if any differ.
"""

import argparse
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

LIST = Path(__file__).parents[1] / "data" / "public_notebooks.tsv"
CELL_TIMEOUT_S, TIMEOUT_S = 60, 300
# An error is said with the names of all its classes, so that one derived from papermill's is known as such.
RUN = """
import json, sys, papermill
try:
    papermill.execute_notebook(sys.argv[1], "executed.ipynb", engine_name=sys.argv[2] or None,
                               kernel_name="python3", execution_timeout=int(sys.argv[3]), progress_bar=False)
    ended = ["finished"], ""
except BaseException as error:
    classes = [each.__name__ for each in type(error).__mro__]
    ended = classes, f"{error.ename}: {error.evalue}" if hasattr(error, "ename") else str(error)
print(json.dumps(ended), file=open("ended.json", "w"))
"""
# These differ from process to process: addresses, kernels, folders, widgets; then times and dates.
VARYING = re.compile(
    r"0x[0-9a-f]+|ipykernel_\d+|/tmp/[\w./+-]+|\b[0-9a-f]{32}\b|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
    r"|\d[\d.]*(e-?\d+)? ?(ns|us|μs|µs|ms|s|min)\b|\d\d:\d\d:\d\d(\.\d+)?|\d{4}-\d\d-\d\d|[\d,]+ loops? each"
)


def notebooks(clones, repositories):
    """Read the list; refuse a clone that isn't there or at another commit."""
    with LIST.open() as file:
        rows = [row for row in csv.reader(file, delimiter="\t") if not repositories or row[0] in repositories]
    for repository, commit in dict.fromkeys((row[0], row[1]) for row in rows):
        clone = clones / repository.replace("/", "+")
        git = ["git", "-C", clone, "rev-parse", "HEAD"]
        found = subprocess.run(git, check=False, capture_output=True, text=True).stdout.strip()
        if found != commit:
            raise SystemExit(
                f"expected {repository} at {commit} in {clone}, found {found or 'no clone'}; remedy: "
                f"git clone https://github.com/{repository} {clone} && git -C {clone} checkout {commit}"
            )
    return rows


def executed(notebook, engine):
    """Run a notebook in a copy of its folder; return how it ended, and what its code cells show."""
    with tempfile.TemporaryDirectory(prefix="public-") as folder:
        place, home = Path(folder, "place"), Path(folder, "home")
        shutil.copytree(notebook.parent, place, ignore=shutil.ignore_patterns(".git"))
        home.mkdir()
        environment = os.environ | {"HOME": str(home), "PIP_NO_INDEX": "1"}  # no notebook installs anything
        command = [sys.executable, "-c", RUN, notebook.name, engine, str(CELL_TIMEOUT_S)]
        with subprocess.Popen(
            command, cwd=place, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        ended, cells = place / "ended.json", place / "executed.ipynb"
        classes, message = json.loads(ended.read_text()) if ended.is_file() else (["no end"], "")
        found = json.loads(cells.read_text(errors="replace"))["cells"] if cells.is_file() else []
        shown = [[_about(cell), *_outputs(cell)] for cell in found if cell["cell_type"] == "code"]
        return {"classes": classes, "message": VARYING.sub("~", message), "cells": shown}


def _about(cell):
    state = cell["metadata"].get("papermill", {})
    return ["cell", str(cell["execution_count"]), str(state.get("status")), str(state.get("exception"))]


def _outputs(cell):
    """Return each output as a list of texts: its kind, its formats, and what it shows."""
    found = []
    for output in cell["outputs"]:
        kind, data = output["output_type"], output.get("data", {})
        if kind == "stream":
            text = "".join(output["text"])
            if (
                found and found[-1][0] == output["name"]
            ):  # it depends on the speed in how many pieces it comes
                found[-1][1] += text
            else:
                found.append([output["name"], text])
        elif kind == "error":
            found.append([kind, output["ename"], output["evalue"], *map(_plain, output["traceback"])])
        else:
            parts = [part for name in sorted(data) for part in (name, _text(data[name]))]
            found.append([kind, str(output.get("execution_count")), json.dumps(output["metadata"]), *parts])
    return [[VARYING.sub("~", part) for part in each] for each in found]


def _text(value):
    return "".join(value) if isinstance(value, list) else json.dumps(value, sort_keys=True).strip('"')


def _plain(line):
    return re.sub(r"\x1b\[[\d;]*m", "", line)


# How closely runs can be compared. The first that two plain runs agree in is what warm is held against.
CLOSENESS = {
    "exactly": lambda outputs: outputs,
    "but numbers": lambda outputs: [
        [re.sub(r"[-\d.]+(e[+-]?\d+)?", "#", p[:2000]) for p in o] for o in outputs
    ],
    "in kind": lambda outputs: [(each[0], len(each)) for each in outputs],
    "in nothing": lambda _: None,
}


def compare(notebook):
    """Return how both engines end, how closely they can be compared, and what is different."""
    plain, warm = executed(notebook, ""), executed(notebook, "warm")
    again = plain if plain == warm else executed(notebook, "")
    different, closeness = [], Counter()
    pairs = list(zip(plain["cells"], again["cells"], warm["cells"], strict=False))
    for number, (one, two, other) in enumerate(pairs):
        name = next(name for name, seen in CLOSENESS.items() if seen(one) == seen(two))
        closeness[name] += 1
        if CLOSENESS[name](one) != CLOSENESS[name](other):
            different.append([number, one, other])
    stable = [name for name in ("classes", "message") if plain[name] == again[name]]
    if "classes" not in stable:  # nothing can be said of such a notebook
        different.append(["ends otherwise by itself", plain["classes"][0], again["classes"][0]])
    # An error of ours may be a class derived from the one that papermill raises.
    if "classes" in stable and plain["classes"][0] not in warm["classes"]:
        different.append(["ends", plain["classes"][0], warm["classes"][0]])
    if stable == ["classes", "message"] and plain["message"] != warm["message"]:
        different.append(["message", plain["message"], warm["message"]])
    if len({len(run["cells"]) for run in (plain, again, warm)}) > 1:
        different.append(["cells", len(plain["cells"]), len(warm["cells"])])
    return {"ends": [plain["classes"][0], plain["message"]], "closeness": closeness, "different": different}


def main():
    """Compare what hasn't been compared, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clones", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("repositories", nargs="*", metavar="OWNER/NAME")
    given = parser.parse_args()
    rows = notebooks(given.clones, given.repositories)
    known = (
        [json.loads(line) for line in given.results.read_text().splitlines()]
        if given.results.exists()
        else []
    )
    done = {tuple(each["notebook"]) for each in known}
    for row in (row for row in rows if tuple(row) not in done):
        result = {"notebook": row} | compare(given.clones / row[0].replace("/", "+") / row[2])
        known.append(result)
        with given.results.open("a") as file:
            file.write(json.dumps(result) + "\n")
    print(f"{'repository':42}{'notebooks':>10}{'finish':>8}{'equal':>7}")  # noqa: T201
    for repository in dict.fromkeys(each["notebook"][0] for each in known):
        of_it = [each for each in known if each["notebook"][0] == repository]
        finish = sum(each["ends"][0] == "finished" for each in of_it)
        equal = sum(not each["different"] for each in of_it)
        print(f"{repository:42}{len(of_it):10}{finish:8}{equal:7}")  # noqa: T201
    cells = sum((Counter(each["closeness"]) for each in known), Counter())
    print("cells compared:", ", ".join(f"{count} {name}" for name, count in cells.items()))  # noqa: T201
    for each in (each for each in known if each["different"]):
        print(f"\n{each['notebook'][0]} {each['notebook'][2]}")  # noqa: T201
        for place, plain, warm in each["different"]:
            print(f"  {place}\n    plain {str(plain)[:400]}\n    warm  {str(warm)[:400]}")  # noqa: T201
    return any(each["different"] for each in known)


if __name__ == "__main__":
    raise SystemExit(main())
