"""Tables of runs, in pandas, in SQL and as files: every value arrives as it was recorded."""

import csv
import html
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradtricks.book.markup import code, escape
from gradtricks.lab.commands.views import write
from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.results.queries import ask
from gradtricks.lab.results.tables import as_csv, as_series, one_line, read_plan, table, tabulate, values_of
from gradtricks.lab.storage.rows import join_name, split_name
from gradtricks.lab.storage.store import Store, StoreError
from synthetic import PROVENANCE, make_run, put

INF, NAN = math.inf, math.nan


def frame_of(*results):
    """Tabulate one finished run for each dict of results."""
    return tabulate(make_run({"seed": seed}, found) for seed, found in enumerate(results))


def listed(series):
    """Return values as built-in types, NaN as text since it equals nothing."""
    return ["nan" if value != value else value for value in values_of(series)]


# Rows and columns


def test_a_row_a_run_and_a_dotted_name_a_result(tmp_path):
    runs = [
        make_run({"seed": 0, "sizes": [1, 2]}, {"rise": {"end": {"both": 2.5}}, "curve": [1.0, 0.5]}),
        make_run({"seed": 1, "sizes": []}, error="ValueError: no"),
        make_run({"seed": 2}, {"loss": 1.0}, stem="other", varying={"seconds": 3.5}),
    ]
    put(tmp_path, runs)
    found = table(Store(tmp_path))
    names = ["run", "status", "error", "stem", "parameters.seed", "parameters.sizes", "results.rise.end.both"]
    names += ["results.curve", "results.loss", "varying.seconds"]
    names += [*(f"provenance.{name}" for name in PROVENANCE), "started", "duration_s"]
    assert sorted(found.columns) == sorted(names)
    assert list(found.columns[:4]) + list(found.columns[-2:]) == names[:4] + names[-2:]
    by_seed = found.set_index("parameters.seed")
    assert by_seed.loc[1, "status"] == "failed"
    assert by_seed.loc[1, "error"] == "ValueError: no"
    assert by_seed.loc[0, "results.rise.end.both"] == 2.5
    assert by_seed.loc[0, "results.curve"] == [1.0, 0.5]
    assert by_seed.loc[1, "parameters.sizes"] == []
    assert by_seed.loc[2, "varying.seconds"] == 3.5
    assert by_seed.loc[2, "started"] == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert Store(tmp_path).lookup(by_seed.loc[0, "run"]).parameters["seed"] == 0


def test_a_sweep_is_tabulated_in_its_order_with_failures_where_nothing_finished(tmp_path):
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


def test_an_empty_store_has_the_columns_that_every_store_has(tmp_path):
    found = table(Store(tmp_path))
    assert list(found.columns) == ["run", "status", "error", "stem", "started", "duration_s"]
    assert len(found) == 0
    assert len(ask(found, "SELECT run FROM runs")) == 0


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
def test_a_column_has_the_type_of_its_values_and_keeps_them(values, dtype):
    series = as_series(values)
    assert str(series.dtype) == dtype
    kept = values_of(series)
    assert [repr(value) for value in kept] == [
        repr(float(value) if dtype == "float64" else value) for value in values
    ] or kept == values


def test_a_nan_is_no_missing_number():
    frame = frame_of({"loss": NAN}, {"other": 1}, {"loss": -INF})
    assert list(frame["results.loss"].isna()) == [False, True, False]
    assert listed(frame["results.loss"]) == ["nan", None, -INF]
    assert listed(ask(frame, "SELECT results.loss FROM runs")["loss"]) == ["nan", None, -INF]


KEYS = st.text(min_size=0, max_size=4)


@given(st.lists(KEYS, min_size=1, max_size=4))
def test_the_name_of_a_column_is_read_back(path):
    assert split_name(join_name(tuple(path))) == tuple(path)


# SQL


def test_names_with_dots_quotation_marks_and_case():
    found = frame_of({"share": {"0.1": 5, 'a"b': 6}, "K": 1, "k": 2, "": 3})
    assert 'results.share."0.1"' in found.columns
    answer = ask(found, 'SELECT results.share."0.1", results.share."a""b", results.K, results.k_ FROM runs')
    assert answer.iloc[0].tolist() == [5, 6, 1, 2]
    assert ask(found, "SELECT results._ AS x FROM runs")["x"].tolist() == [3]


def test_a_name_that_is_a_value_here_and_has_parts_there():
    found = frame_of({"loss": 1.5}, {"loss": {"end": 2.5}}, {"loss": {}})
    answer = ask(found, "SELECT results.loss.value, results.loss.end FROM runs ORDER BY parameters.seed")
    assert [listed(answer[name]) for name in answer] == [[1.5, None, None], [None, 2.5, None]]


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
def test_the_type_of_a_result_in_sql(values, kind, answers):
    answer = ask(
        frame_of(*({"x": value} for value in values)), "SELECT results.x, typeof(results.x) AS t FROM runs"
    )
    assert set(answer["t"]) == {kind}
    assert repr(values_of(answer["x"])) == repr(answers)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


# A query takes a tenth of a second, so each example has several columns.
@settings(max_examples=20)
@given(st.lists(st.lists(ANYTHING, min_size=4, max_size=4), min_size=6, max_size=6))
def test_whatever_was_recorded_the_table_keeps_it_and_sql_takes_it(recorded):
    found = frame_of(*({f"x{n}": value for n, value in enumerate(row)} for row in zip(*recorded)))
    for n, values in enumerate(recorded):
        kept = values_of(found[f"results.x{n}"])
        # A whole number beside floats is a float; everything else is as it was.
        assert all(repr(k) == repr(v) or k == v for k, v in zip(kept, values, strict=True))
    assert len(ask(found, "SELECT results FROM runs")) == 4
    assert len(list(csv.reader(io.StringIO(as_csv(found))))) == 5


@settings(max_examples=20)
@given(st.lists(st.tuples(st.floats(), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=20))
def test_numbers_go_through_sql_exactly(numbers):
    found = frame_of(*({"x": number, "i": integer} for number, integer in numbers))
    answer = ask(found, "SELECT results.x, results.i FROM runs ORDER BY parameters.seed")
    for name, sent in zip("xi", zip(*numbers), strict=True):
        assert list(map(repr, values_of(answer[name]))) == list(map(repr, sent))


def test_dates_and_decimals():
    runs = [make_run({"day": date(2026, 1, 31), "at": datetime(2026, 1, 31, 12, tzinfo=UTC)}, {})]
    answer = ask(tabulate(runs), "SELECT parameters.day, parameters.at, 0.1 AS tenth, started FROM runs")
    assert answer["day"].tolist() == ["2026-01-31"]
    assert answer["tenth"].tolist() == [0.1]
    assert str(answer["at"][0]) == str(answer["started"][0]) == "2026-01-31 12:00:00"


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT results.los FROM runs", r'(?s)"los".*"loss".*columns of runs.*\n  results.loss\n'),
        ("SELECT seed FROM runs", r"(?s)seed.*parameters\.seed"),
        ("SELCT 1", "syntax error"),
        ("", "expected a query; got ''; remedy: gradtricks table --help shows one"),
        ("-- nothing", "expected a query; got '-- nothing'"),
        ("SELECT * FROM read_csv('/etc/passwd')", "disabled by configuration"),
        ("COPY runs TO 'stolen.csv'", "disabled by configuration"),
        ("SET enable_external_access = true", "configuration has been locked"),
        ("SELECT * FROM tree", "tree does not exist"),
        ("SELECT now(), 1", r"expected times without a zone; got TIMESTAMP .* in now\(\); remedy: cast them"),
        ("SELECT [now()] AS x", "got TIMESTAMP WITH TIME ZONE in x;"),
    ],
)
def test_a_query_that_is_refused_says_why_and_what_there_is(sql, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParameterError, match=message):
        ask(frame_of({"loss": 1.0}), sql)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_a_query():
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        ask(frame_of({}), "SELECT count(*) FROM range(10000000000) a, range(100) b")


def test_a_message_lists_no_more_columns_than_can_be_read():
    with pytest.raises(ParameterError, match="and 35 more"):
        ask(frame_of({f"r{n}": n for n in range(100)}), "SELECT nothing FROM runs")


# Files

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


def test_parquet_has_the_same_names_and_values(tmp_path):
    path = tmp_path / "it's.parquet"
    list(write(frame_of(FOUND, {}), "parquet", path))
    answer = duckdb.read_parquet(str(path))
    row = dict(zip(answer.columns, answer.fetchall()[0], strict=True))
    assert row["results.loss"] == FOUND["loss"]
    assert math.isnan(row["results.worst"])
    assert row["results.curve"] == [1.0, 0.5]
    assert row["results.big"] == str(2**70)
    assert row["started"] == datetime(2026, 1, 31, 12)  # in UTC
    assert [p.name for p in tmp_path.iterdir()] == ["it's.parquet"]


SQL_ONLY = {
    "INTERVAL 90 SECOND": "0:01:30",
    "'00000000-0000-0000-0000-000000000001'::UUID": "00000000-0000-0000-0000-000000000001",
    "TIME '12:30:00'": "12:30:00",
    "'\\x01'::BLOB": r"b'\x01'",
    "[0.5, 0.25]": "[0.5, 0.25]",  # decimals to DuckDB
    "[INTERVAL 90 SECOND, NULL]": '["0:01:30", null]',
    "{'at': TIME '12:30:00', 'n': 1}": '{"at": "12:30:00", "n": 1}',
    "MAP {1: 0.5}": '{"1": 0.5}',
    "[TIMESTAMP '2026-01-31 12:00:00']": '[{"$date": "2026-01-31T12:00:00"}]',
}


@pytest.mark.parametrize(("sql", "text"), SQL_ONLY.items())
def test_what_only_sql_has_is_text_in_files(sql, text, tmp_path):
    answer = ask(frame_of({}), f"SELECT {sql} AS x")
    assert list(csv.reader(io.StringIO(as_csv(answer)))) == [["x"], [text]]
    list(write(answer, "parquet", tmp_path / "x.parquet"))
    assert duckdb.read_parquet(str(tmp_path / "x.parquet")).columns == ["x"]


def test_two_columns_of_one_name_are_no_parquet(tmp_path):
    answer = ask(frame_of({}), "SELECT 1 AS a, 2 AS a")
    assert as_csv(answer) == "a,a\n1,2\n"
    with pytest.raises(ParameterError, match=r"columns of different names; got several called a; remedy: "):
        list(write(answer, "parquet", tmp_path / "a.parquet"))
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_in_one_step_or_not_at_all(tmp_path):
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
