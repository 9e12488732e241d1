"""Progress while runs go on, and the time that is left."""

import io
import json
import math
import re
import time
from dataclasses import replace

import pytest
from rich.console import Console

from gradtricks.lab.encoding import encode
from gradtricks.lab.runs.many import Run
from gradtricks.lab.runs.progress import Board, Pace, estimate_s
from gradtricks.lab.storage.store import Store, StoredRun
from sweeping import execute_all, plan, write_sweep

pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture
def notebook(tmp_path):
    """Return the notebook of a small sweep."""
    return write_sweep(tmp_path)


def console(width=100, *, terminal=False):
    """Return a console that writes to memory."""
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)


def board(specs, store, workers=2, width=100):
    """Return a board, its runs and the terminal that it is on."""
    runs, shown = [Run(spec) for spec in specs], console(width, terminal=True)
    return Board(runs, store, shown, workers=workers), runs, shown


def bar(board, screen):
    """Return the bar as the terminal shows it."""
    paper = console(screen.width)
    paper.print(board._bar.get_renderable())
    return paper.file.getvalue().splitlines()[0]


def end(board, run, error=None):
    """Tell a board that a run has ended."""
    run.stored, run.error, run.seconds = None if error else StoredRun("", {}), error, 2.0
    board.tell(run)


@pytest.mark.parametrize("width", [40, 100])
def test_a_terminal_shows_how_far_the_runs_are(notebook, store, width):
    specs = [replace(spec, expected_s=60.0) for spec in plan(notebook, 40)]
    shown, runs, screen = board(specs, store, workers=20, width=width)
    with shown.live():
        for number, run in enumerate(runs[:20]):
            run.worker, run.began = str(number), time.monotonic()
            shown.tell(run)
        end(shown, runs[0])
        end(shown, runs[1], error="wrong")
        first = bar(shown, screen)
        shown.stop()
        second = bar(shown, screen)
    assert re.match(r" 2/40 .*about [34] s left, 1 failed, 18 run", first)
    assert re.match(r" 2/40 .*stopping, 1 failed, 18 running", second)
    assert max(map(len, (first, second))) <= width
    text = screen.file.getvalue().replace("\r", "")
    assert "2/40 small-seed=1: failed\nwrong" in text
    assert "Stopping: what is going on is finished and kept. Ctrl-C again ends that too." in text


def test_of_what_nothing_is_known_no_time_is_said(notebook, store):
    known, unknown = plan(notebook, 2)
    shown, runs, screen = board([replace(known, expected_s=60.0), unknown], store)
    assert bar(shown, screen).endswith(" 0 running")
    assert " left" not in bar(shown, screen)
    end(shown, runs[1])
    assert "about 60 s left" in bar(shown, screen) or "about 2 s left" in bar(shown, screen)
    runs[0].worker, runs[0].began = "1", time.monotonic() - 90.0
    assert bar(shown, screen).endswith(" 1 running"), "it takes longer than was expected"
    assert " left" not in bar(shown, screen)


def test_thousands_of_runs_get_a_hundred_lines(notebook, store, monkeypatch):
    runs, screen = [Run(spec) for spec in plan(notebook, 1000)], console()
    shown = Board(runs, store, screen)
    for number, run in enumerate(runs):
        end(shown, run, error="a\nb" if number % 2 else None)
    lines = screen.file.getvalue().splitlines()
    assert len(lines) < 130
    assert lines[-1] == "1000/1000 small-seed=999: failed, 500 so far"
    monkeypatch.setattr("gradtricks.lab.runs.progress._QUIET_S", -1)
    runs, screen = [Run(spec) for spec in plan(notebook, 1000)], console()
    end(Board(runs, store, screen), runs[0])
    assert screen.file.getvalue() != "", "after a while any run gets a line"


def test_a_run_that_lost_its_process_waits_again(notebook, store):
    specs = [replace(spec, expected_s=60.0) for spec in plan(notebook, 3)]
    shown, (run, *_), screen = board(specs, store, workers=1)
    for run.worker in ("1", "", "1", ""):
        run.began = time.monotonic()
        shown.tell(run)
    assert bar(shown, screen).endswith("about 3 min left, 0 running")


def test_the_pace_is_that_of_similar_then_recent_runs(notebook, store, tmp_path):
    runs = [*plan(notebook, 2, pause=0.0), *plan(notebook, 1, pause=0.01)]
    execute_all(runs, store)
    for path in (tmp_path / "runs").glob("small-*/*/record.json"):
        record = json.loads(path.read_text())
        record["duration_s"] = 5.0 + 100 * record["parameters"]["pause"]
        path.write_text(json.dumps(record))
    quick, slow = replace(plan(notebook, 9)[8], expected_s=77.0), plan(notebook, 9, pause=0.01)[8]
    pace = Pace([quick, slow], store)
    assert (pace.expected_s(quick), pace.expected_s(slow)) == (5.0, 6.0)
    assert pace.left_s([Run(slow)] * 5 + [Run(quick)], 2) == (5 * 6 + 5) / 2
    assert pace.left_s([Run(slow)], 8) == 6.0, "no worker can help with the longest"
    for seconds in (1.0, 2.0, 6.0):
        pace.learn(quick, seconds)
    assert pace.expected_s(slow) == 3.0

    fresh = Pace([quick, slow], Store(tmp_path / "none"))
    assert fresh.left_s([Run(slow)], 1) is None
    assert fresh.expected_s(quick) == 77.0
    fresh.learn(quick, 2.0)
    assert fresh.expected_s(quick) == 2.0
    assert estimate_s([quick], store, 2) == 5.0
    assert estimate_s([], store, None) == 0.0


def test_the_pace_knows_values_that_json_lacks(notebook, store, tmp_path):
    execute_all(plan(notebook, 2), store)
    for path, pause, seconds in zip(
        (tmp_path / "runs").glob("small-*/*/record.json"), (0.0, math.inf), (5.0, 7.0), strict=True
    ):
        record = json.loads(path.read_text())
        record["parameters"]["pause"], record["duration_s"] = encode(pause, "pause"), seconds
        path.write_text(json.dumps(record))
    spec = plan(notebook, 9, pause=math.inf)[8]
    pace = Pace([spec], store)
    assert pace.expected_s(spec) == 7.0
