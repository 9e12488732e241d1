"""Tables of runs, in pandas and as files: every value arrives as it was recorded."""

import csv
import html
import io
import json
import math
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradtricks.lab
from gradtricks.book.markup import code, escape
from gradtricks.lab.commands.views import write
from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.results.columns import flattened, split_name
from gradtricks.lab.results.tables import (
    as_csv,
    as_parquet,
    as_series,
    one_line,
    read_plan,
    table,
    tabulate,
    values_of,
)
from gradtricks.lab.storage.store import Store, StoreError
from synthetic import PROVENANCE, make_run, put

INF, NAN = math.inf, math.nan


def frame_of(*results):
    """Tabulate one finished run for each dict of results."""
    return tabulate(make_run({"seed": seed}, found) for seed, found in enumerate(results))


def listed(series):
    """Return values as built-in types, NaN as text since it equals nothing."""
    return ["nan" if value != value else value for value in values_of(series)]


@pytest.fixture
def in_parquet(tmp_path):
    """Return a function that writes a table as Parquet and reads it with DuckDB: types and values by name."""

    def read(frame):
        path = tmp_path / "it's.parquet"
        list(write(frame, None, path))
        assert list(tmp_path.iterdir()) == [path]
        found = duckdb.read_parquet(str(path))
        columns = list(zip(*found.fetchall())) or [()] * len(found.columns)
        return {
            name: (str(kind), [*values]) for name, kind, values in zip(found.columns, found.types, columns)
        }

    return read


# Rows and columns


def test_a_row_a_run_and_a_dotted_name_a_result(tmp_path):
    runs = [
        make_run({"seed": 0, "sizes": [1, 2]}, {"rise": {"end": {"both": 2.5}}, "curve": [1.0, 0.5]}),
        make_run({"seed": 1, "sizes": []}, error="ValueError: no"),
        make_run({"seed": 2}, {"loss": 1.0}, stem="other", varying={"seconds": 3.5}),
    ]
    put(tmp_path, runs)
    found = table(Store(tmp_path))
    names = ["run", "status", "error", "stem", "parameters.seed", "parameters.sizes"]
    names += ["results.loss", "results.rise.end.both", "results.curve", "varying.seconds"]
    names += [*(f"provenance.{name}" for name in PROVENANCE), "started", "duration_s"]
    assert list(found.columns) == names, "a group after another, in each as they come first"
    by_seed = found.set_index("parameters.seed")
    assert by_seed.loc[1, "status"] == "failed"
    assert by_seed.loc[1, "error"] == "ValueError: no"
    assert by_seed.loc[0, "results.rise.end.both"] == 2.5
    assert by_seed.loc[0, "results.curve"] == [1.0, 0.5]
    assert by_seed.loc[1, "parameters.sizes"] == []
    assert by_seed.loc[2, "varying.seconds"] == 3.5
    assert by_seed.loc[2, "started"] == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert Store(tmp_path).lookup(by_seed.loc[0, "run"]).parameters["seed"] == 0


def test_a_sweep_is_tabulated_in_its_order_failures_too(tmp_path):
    runs = [make_run({"seed": seed}, error="no" if seed == 1 else None) for seed in (3, 1, 2, 9, 4)]
    put(tmp_path, runs[:4])
    wanted = [{"request": run.request, "title": run.title} for run in runs if run.parameters["seed"] != 9]
    found = table(Store(tmp_path), plan=read_plan({"runs": wanted}))
    assert listed(found["parameters.seed"]) == [3, 1, 2]
    assert list(found["status"]) == ["finished", "failed", "finished"]


@pytest.mark.parametrize("runs", [[1], [{"title": "small"}], [{"title": "small", "request": 1}], None, []])
def test_a_plan_that_was_edited_is_refused(runs):
    assert read_plan({"runs": [], "shown": ["results.loss"]}).shown == ("results.loss",)
    with pytest.raises(StoreError, match=r"a plan as a sweep writes it; got .*; remedy: sweep again"):
        read_plan({"runs": runs, "varied": "seed" if runs == [] else []})
    with pytest.raises(StoreError, match="got None: all: "):
        read_plan(None)


def test_an_empty_store_has_the_columns_that_every_store_has(tmp_path, in_parquet):
    found = table(Store(tmp_path))
    assert list(found.columns) == ["run", "status", "error", "stem", "started", "duration_s"]
    assert len(found) == 0
    assert in_parquet(found)["run"] == ("VARCHAR", [])


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2], "int64"),
        ([1, None], "Int64"),
        ([1, 2**63], "object"),
        ([True, False], "bool"),
        ([True, None], "boolean"),
        ([1.5, NAN], "float64"),
        ([1.5, None], "Float64"),
        ([1, 0.5], "float64"),
        ([2**53 + 1, 0.5], "object"),
        (["a", None], "str"),
        ([None, None], "str"),
        ([1, "a"], "object"),
        ([True, 1], "object"),
        ([[1], None], "object"),
        ([datetime(2026, 1, 1, tzinfo=UTC)], "datetime64[us, UTC]"),
        ([datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)], "object"),
        ([datetime(2026, 1, 1)], "object"),  # without a zone, as a parameter may be
    ],
)
def test_a_column_keeps_its_values_and_their_type(values, dtype):
    series = as_series(values)
    assert str(series.dtype) == dtype
    kept = values_of(series)
    assert [repr(value) for value in kept] == [
        repr(float(value) if dtype == "float64" else value) for value in values
    ] or kept == values


def test_a_nan_is_no_missing_number(in_parquet):
    frame = frame_of({"loss": NAN}, {"other": 1}, {"loss": -INF})
    assert list(frame["results.loss"].isna()) == [False, True, False]
    assert listed(frame["results.loss"]) == ["nan", None, -INF]
    assert repr(in_parquet(frame)["results.loss"][1]) == "[nan, None, -inf]"


KEYS = st.text(min_size=0, max_size=4)


@given(st.lists(KEYS, min_size=1, max_size=4))
def test_the_name_of_a_column_is_read_back(path):
    nested = 1
    for key in reversed(path):
        nested = {key: nested}
    ((name, value),) = flattened(nested)
    assert (split_name(name), value) == (tuple(path), 1)


# Files


def test_names_with_dots_and_quotation_marks(in_parquet):
    found = in_parquet(frame_of({"share": {"0.1": 5, 'a"b': 6}, "": 3}))
    names = ['results.share."0.1"', 'results.share."a""b"', 'results.""']
    assert [found[name][1] for name in names] == [[5], [6], [3]]


@pytest.mark.parametrize(
    ("values", "kind", "answers"),
    [
        ([1, 2], "BIGINT", [1, 2]),
        ([1, 2**63], "VARCHAR", ["1", str(2**63)]),
        ([1, 0.1], "DOUBLE", [1.0, 0.1]),
        ([True, False], "BOOLEAN", [True, False]),
        (["a", "1"], "VARCHAR", ["a", "1"]),
        ([1, "a", 0.5, True], "VARCHAR", ["1", "a", "0.5", "true"]),
        ([[1, 2], []], "BIGINT[]", [[1, 2], []]),
        ([[0.1, NAN], [INF]], "DOUBLE[]", [[0.1, NAN], [INF]]),
        ([[[1.5], []], [[2.5, None]]], "DOUBLE[][]", [[[1.5], []], [[2.5, None]]]),
        ([["a,", '"'], None], "VARCHAR[]", [["a,", '"'], None]),
        ([[True], [False]], "BOOLEAN[]", [[True], [False]]),
        ([[1, "a"], [NAN]], "JSON", ['[1, "a"]', '[{"$float": "nan"}]']),
        ([[2**70], [1]], "JSON", [f"[{2**70}]", "[1]"]),
        ([[{"a": 1}], "text"], "JSON", ['[{"a": 1}]', '"text"']),
    ],
)
def test_the_type_of_a_result_in_parquet(values, kind, answers, in_parquet):
    found = in_parquet(frame_of(*({"x": value} for value in values)))
    assert repr(found["results.x"]) == repr((kind, answers))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


# A file takes a tenth of a second, so each example has several columns.
@settings(max_examples=20)
@given(st.lists(st.lists(ANYTHING, min_size=4, max_size=4), min_size=6, max_size=6))
def test_tables_and_files_keep_all_recorded_values(recorded):
    found = frame_of(*({f"x{n}": value for n, value in enumerate(row)} for row in zip(*recorded)))
    for n, values in enumerate(recorded):
        kept = values_of(found[f"results.x{n}"])
        # A whole number beside floats is a float; everything else is as it was.
        assert all(repr(k) == repr(v) or k == v for k, v in zip(kept, values, strict=True))
    assert as_parquet(found)
    assert len(list(csv.reader(io.StringIO(as_csv(found))))) == 5


@pytest.mark.parametrize("values", [[0.1 + 0.2, 5e-324], [2**63 - 1, -(2**63)]])
def test_numbers_go_through_parquet_exactly(values, in_parquet):
    assert in_parquet(frame_of(*({"x": value} for value in values)))["results.x"][1] == values


def test_times_are_in_utc_in_parquet_and_dates_are_text(in_parquet):
    day, at = date(2026, 1, 31), datetime(2026, 1, 31, 13, tzinfo=timezone(timedelta(hours=1)))
    found = in_parquet(tabulate([make_run({"day": day, "at": at}, {})]))
    noon = ("TIMESTAMP", [datetime(2026, 1, 31, 12)])
    assert (found["parameters.day"], found["parameters.at"], found["started"]) == (
        ("VARCHAR", ["2026-01-31"]),
        noon,
        noon,
    )


FOUND = {"loss": 0.1 + 0.2, "worst": NAN, "top": INF, "curve": [1, 0.5], "big": 2**70}
FOUND["text"] = 'a|"b", <i>\nc'


def test_csv_has_every_digit():
    rows = list(csv.DictReader(io.StringIO(as_csv(frame_of(FOUND, {})))))
    assert rows[0]["results.loss"] == "0.30000000000000004"
    assert (rows[0]["results.worst"], rows[0]["results.top"]) == ("nan", "inf")
    assert rows[0]["results.text"] == FOUND["text"]
    assert json.loads(rows[0]["results.curve"]) == [1, 0.5]
    assert rows[0]["results.big"] == str(2**70)
    assert rows[1]["results.loss"] == ""


def test_a_file_is_replaced_in_one_step_or_not(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("old")
    with pytest.raises(AttributeError):
        list(write(None, "csv", path))
    assert path.read_text() == "old"
    list(write(frame_of({"loss": 1.0}), "csv", path))
    assert "results.loss" in path.read_text()
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link_and_a_folder_is_refused(tmp_path):
    (tmp_path / "there.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to("there.csv")
    list(write(frame_of({"loss": 1.0}), "csv", tmp_path / "link.csv"))
    assert (tmp_path / "link.csv").is_symlink()
    assert "results.loss" in (tmp_path / "there.csv").read_text()
    with pytest.raises(ParameterError, match="expected a file to write; got the folder"):
        list(write(frame_of({"loss": 1.0}), "csv", tmp_path))


def test_what_is_no_ordinary_file_is_written_into(tmp_path):
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_text)
        list(write(frame_of({"loss": 1.0}), "csv", pipe))
        assert "results.loss" in read.result()
    assert pipe.is_fifo()


def test_duckdb_finds_a_table_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = [{"hidden_gradient_scale": scale, "unroll_lengths": [1, 5]} for scale in (1.0, 0.5)]
    runs = [make_run({"seed": 0} | setting, {"loss_after": 1.5}) for setting in settings]
    runs += [make_run({"seed": 1} | settings[0], {"loss_after": 2.5}), make_run(settings[0], error="no")]
    put("_build/runs", runs)
    plan = {"runs": [{"request": run.request, "title": run.title} for run in runs]}
    Store("_build/runs").write_plan("unrolling", plan)
    chapter = Path(__file__).parents[2].joinpath("book", "sweeps.md").read_text()
    blocks = re.findall(r"(?s)\n```python\n(.*?)\n```", chapter)
    names = {"runs": gradtricks.lab.table("unrolling")}
    (block,) = (block for block in blocks if "FROM runs" in block)
    exec(block, names)  # noqa: S102
    assert names["losses"].to_dict("list") == {"scale": [0.5, 1.0], "loss": [1.5, 2.0]}
    runs = names["runs"]
    assert str(runs["results.loss_after"].dtype) == "Float64"
    answer = duckdb.sql('SELECT "parameters.unroll_lengths"[2], "results.loss_after" FROM runs').fetchall()
    assert answer == [(5, 1.5), (5, 1.5), (5, 2.5), (5, None)]


def test_importing_costs_nothing_until_it_is_used():
    code = "import sys, gradtricks.lab.results.tables\n"
    code += "print({'pandas', 'duckdb', 'matplotlib'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


# Text from outside


SIGNS = st.text(st.characters(codec="utf-8") | st.sampled_from("`*_{}[]<>()#+-!|$~^&:%@=.0123456789\\\n\"' "))


@given(SIGNS)
def test_escaped_text_is_shown_as_it_is(text):
    mdit = pytest.importorskip("myst_parser.parsers.mdit")
    from markdown_it.renderer import RendererHTML
    from myst_parser.config.main import MdParserConfig

    every = {"amsmath", "attrs_inline", "attrs_block", "colon_fence", "deflist", "dollarmath", "html_image"}
    every |= {"fieldlist", "strikethrough", "substitution", "tasklist"}
    parser = mdit.create_md_parser(MdParserConfig(enable_extensions=every), RendererHTML)
    for source, begin, end in (
        (escape(text), "<p>", "</p>\n"),
        (f"# {escape(text)}", "<h1>", "</h1>\n"),
        (f"| {escape(text)} | b |\n|---|---|\n| {escape(text)} | {code(text)} |", "<td>", "</td>\n"),
    ):
        shown = re.findall(f"{begin}(.*?){end}", parser.render(source), re.DOTALL)
        expected = [one_line(text)] if one_line(text) or begin != "<p>" else []
        assert [html.unescape(cell) for cell in shown[:1]] == expected
        if begin == "<td>":
            inside = re.fullmatch("<code[^>]*>(.*)</code>", shown[1], re.DOTALL)[1]
            assert html.unescape(inside).strip() == (one_line(text) or '""').strip()


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a", "`a`"),
        ("", '`""`'),
        ("a`b", "``a`b``"),
        ("`", "`` ` ``"),
        ("a ``` |", r"````a ``` \|````"),
        ("a\n<b>", "`a <b>`"),
    ],
)
def test_code_ends_where_it_should(text, written):
    assert code(text) == written


def test_what_cannot_be_seen_is_shown_by_its_number():
    assert one_line("a\n \u202eb\x00") == r"a \u202eb\x00"
