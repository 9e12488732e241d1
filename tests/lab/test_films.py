"""Films: from frames to the file that the book shows, and what is said of wrong ones."""

import io
import re
from base64 import b64decode, b64encode
from types import SimpleNamespace

import nbformat
import numpy as np
import pytest
from PIL import Image, ImageSequence

pytest.importorskip("sphinx")

from gradtricks.book.quotes import figure_of
from gradtricks.book.sources import lay_out
from gradtricks.lab import films
from gradtricks.lab.films import record_film
from gradtricks.lab.runs.execution import execute_run
from gradtricks.lab.runs.outputs import collect_figures
from gradtricks.lab.runs.planning import plan_run
from gradtricks.lab.storage.store import Store
from notebooks import write_notebook

BODY = """\
import numpy as np
from gradtricks.lab import record_film
print("before")
frames = 255 * np.eye(8, dtype=np.uint8).reshape(4, 2, 8)
record_film("rolling_ball", frames, frames_per_second=5, alt="a ball")
print("after")
"""


@pytest.fixture
def film(monkeypatch):
    """Return a function that records a film and returns its file."""
    shown = []
    monkeypatch.setattr(films, "show", lambda *said: shown.append(said))

    def film(frames, frames_per_second=20):
        record_film("film", frames, frames_per_second=frames_per_second, alt="it moves")
        data, about = shown.pop()
        assert data.keys() == {"image/png", "text/plain"}
        assert data["text/plain"] == "it moves"
        assert about == {"gradtricks": {"figure": "film", "alt": "it moves"}}
        return b64decode(data["image/png"], validate=True)

    return film


def random_frames(*shape, most=255):
    """Draw frames of noise, of which no two are equal."""
    return np.random.default_rng(0).integers(0, most, shape, dtype=np.uint8, endpoint=True)


def read_back(data):
    """Return the frames of a file, each for as long as it is shown, and what the file says of itself."""
    with Image.open(io.BytesIO(data)) as image:
        read = [(frame.info["duration"], frame.convert("RGB")) for frame in ImageSequence.Iterator(image)]
        about = SimpleNamespace(mode=image.mode, loop=image.info["loop"], format=image.format)
    return np.stack([np.asarray(frame) for _, frame in read]), [duration for duration, _ in read], about


# Files


@pytest.mark.parametrize(
    ("frames", "mode"),
    [
        (random_frames(7, 5, 9), "L"),
        (random_frames(7, 5, 9, 3, most=1), "P"),  # eight colours
        (random_frames(2, 8, 8, 1) * np.ones(3, np.uint8), "P"),
        (random_frames(7, 9, 9, 3), "RGB"),
        (random_frames(7, 5, 3), "L"),  # three columns aren't three colours
    ],
)
def test_a_film_keeps_every_pixel_of_every_frame(film, frames, mode):
    read, durations, about = read_back(film(frames))
    grey = frames if frames.ndim == 4 else np.repeat(frames[..., np.newaxis], 3, axis=-1)
    np.testing.assert_array_equal(read, grey)
    assert durations == [50] * len(frames)
    assert (about.format, about.mode, about.loop) == ("PNG", mode, 0)


@pytest.mark.parametrize(("rate", "duration"), [(1, 1000), (24, 1000 / 24), (2.5, 400), (60, 1000 / 60)])
def test_each_frame_is_shown_as_long_as_asked(film, rate, duration):
    assert read_back(film(random_frames(3, 4, 4), rate))[1] == pytest.approx([duration] * 3)


def test_a_frame_that_stays_is_written_once_and_shown_longer(film):
    first, second = random_frames(2, 4, 4)
    read, durations, _ = read_back(film(np.stack([first, first, first, second])))
    np.testing.assert_array_equal(read[..., 0], [first, second])
    assert durations == [150, 50]


def test_one_frame_is_a_still_picture(film):
    with Image.open(io.BytesIO(film(random_frames(1, 4, 4)))) as image:
        assert image.n_frames == 1


def test_equal_frames_are_equal_files(film):
    frames = random_frames(4, 6, 6, 3, most=2)
    assert film(frames) == film(frames.copy(order="F"))
    assert film(frames) == film(list(frames))
    assert film(frames) != film(frames[::-1])


def test_a_film_by_hand_prints(capsys):
    record_film("film", random_frames(2, 3, 3), frames_per_second=1, alt="it moves")
    assert capsys.readouterr().out == "it moves\n"


# Errors

SMALL = np.zeros((2, 3, 3), np.uint8)


@pytest.mark.parametrize(
    ("frames", "options", "said"),
    [
        (SMALL, {"name": "../a"}, "name must be lower-case letters, digits and underscores; got '../a'"),
        (SMALL, {"alt": " "}, "alt must say what the figure 'film' shows; got an empty text"),
        (SMALL / 2, {}, "frames must be uint8 of [T, H, W] or [T, H, W, 3]; got float64 of [2, 3, 3]; "),
        (SMALL[0], {}, "got uint8 of [3, 3]; remedy: stack frames of values from 0 to 255"),
        (np.zeros((2, 3, 3, 4), np.uint8), {}, "got uint8 of [2, 3, 3, 4]; remedy: stack frames"),
        (np.zeros((1, 2, 3, 3, 3), np.uint8), {}, "got uint8 of [1, 2, 3, 3, 3]; remedy: stack frames"),
        (SMALL[:0], {}, "frames must be at least one, of at least one pixel; got [0, 3, 3]; remedy: record"),
        (SMALL[:, :, :0], {}, "of at least one pixel; got [2, 3, 0]; remedy: record"),
        *(
            (SMALL, {"frames_per_second": n}, f"frames_per_second must be from 1 to 60; got {n}; remedy: ")
            for n in (0, -5, 0.5, 61, float("nan"))
        ),
        (random_frames(2, 800, 800), {}, "'film', frames of [2, 800, 800]; remedy: fewer or smaller frames"),
    ],
)
def test_what_cannot_be_a_film_is_refused(frames, options, said):
    options = {"name": "film", "frames_per_second": 10, "alt": "x"} | options
    with pytest.raises(ValueError, match=re.escape(said)):
        record_film(options.pop("name"), frames, **options)


# Pages


@pytest.fixture(scope="module")
def stored(tmp_path_factory, kernels):
    """Run a notebook that records a film."""
    folder = tmp_path_factory.mktemp("films")
    notebook = write_notebook(folder / "experiments" / "small.ipynb", body=BODY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradtricks.lab.runs.kernels.LIBRARIES", {})  # it needs no framework
        return execute_run(plan_run(notebook, {}), Store(folder / "runs"), kernels)


def test_a_run_s_film_is_a_file_of_the_book(stored, tmp_path):
    assert stored.record["figures"] == {"rolling_ball": "a ball"}
    lay_out({"small-torch": stored}, tmp_path / "experiments")
    path = tmp_path / "experiments" / "small-torch" / "rolling_ball.png"
    assert collect_figures(stored.read_notebook()) == {"rolling_ball.png": path.read_bytes()}
    assert read_back(path.read_bytes())[0].shape == (4, 2, 8, 3)

    env = SimpleNamespace(srcdir=tmp_path, note_dependency=lambda path: None)
    _, *found = figure_of(env, "small/torch/rolling_ball")
    assert found == ["/experiments/small-torch/rolling_ball.png", "a ball"]


def test_a_film_stands_closed_below_its_cell(stored, tmp_path):
    lay_out({"small-torch": stored}, tmp_path)
    node = nbformat.read(tmp_path / "small.ipynb", as_version=4)
    place = next(n for n, cell in enumerate(node.cells) if "record_film" in cell.source)
    assert "".join(output.text for output in node.cells[place].outputs) == "before\nafter\n"
    assert "mystnb" not in node.cells[place].metadata
    assert node.cells[place + 1].source == (
        ":::{dropdown} Film: rolling ball\n```{run-figure} small/torch/rolling_ball\n```\n:::"
    )
    nbformat.validate(node)


def test_a_film_on_a_page_waits_for_its_reader(stored, tmp_path, forks):
    pytest.importorskip("myst_nb")
    source = tmp_path / "source"
    lay_out({"small-torch": stored}, source / "experiments")
    (source / "conf.py").write_text(
        'extensions = ["myst_nb", "sphinx_design", "gradtricks.book.extension"]\n'
        'nb_execution_mode = "off"\nmyst_enable_extensions = ["colon_fence"]\n'
    )
    (source / "index.md").write_text("# Page\n\n```{toctree}\nexperiments/small\n```\n")
    done = forks.run("sphinx", "-b", "html", "-q", "-W", source, tmp_path / "html")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    page = (tmp_path / "html" / "experiments" / "small.html").read_text()
    (image,) = re.findall("<img [^>]*>", page)
    assert 'alt="a ball"' in image
    assert 'width="8" height="2"' in image
    assert 'loading="lazy"' in image
    (opening,) = re.findall(f"<details([^>]*)>(?:(?!</details>).)*{re.escape(image)}", page, re.DOTALL)
    assert not re.search(r"\bopen\b", opening)


def test_a_figure_that_is_no_png_is_left_out():
    for data, found in (("A", {}), (b64encode(b"film").decode(), {"film.png": b"film"})):
        about = {"gradtricks": {"figure": "film", "alt": "x"}}
        output = nbformat.v4.new_output("display_data", data={"image/png": data}, metadata=about)
        node = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("", outputs=[output])])
        assert collect_figures(node) == found
