"""Parameters: what a notebook declares, what users type, and the cell that sets it; a value is never code."""

import ast
import inspect
import json
import operator
import re
import sys
from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import nbformat
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from IPython.core.inputtransformer2 import TransformerManager

from gradtricks.lab.notebooks.injection import INJECTED, inject
from gradtricks.lab.notebooks.schema import (
    ParameterError,
    check_parameters,
    excerpt,
    read_notebook,
    read_parameters,
)
from gradtricks.lab.notebooks.texts import Plain, as_json, literal
from gradtricks.lab.sweeps.plain_yaml import read_yaml
from notebooks import write_notebook

RANGES = """\
count: PositiveInt = 1
start: NonNegativeInt = 0
rate: Annotated[float, Field(gt=0, le=1)] = 0.5  # per step
share: Annotated[float, Field(ge=0, lt=1)] | None = None
finite: Annotated[float, Field(allow_inf_nan=False)] = 0.0
eighths: Annotated[int, Field(multiple_of=8)] = 8
quarters: Annotated[float, Field(multiple_of=0.25)] = 0.5
name: Annotated[str, Field(min_length=1, max_length=3)] = "a"
sizes: Annotated[list[PositiveInt], Field(min_length=1)] = [1]
weights: dict[str, NonNegativeFloat] = {"a": 1, "b": float("inf")}
day: date = date(2026, 1, 31)
moment: datetime = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)
nothing: float = float("nan")
either: int | str = 0
both: date | datetime | None = None
order: Literal[1, 2, "first", True] = 1
words: Literal["yes", "on", "1", True] = "on"
yes: bool = True
"""


def declare(source):
    """Read a parameters cell."""
    cell = nbformat.v4.new_code_cell(source, metadata={"tags": ["parameters"]})
    return read_parameters(nbformat.v4.new_notebook(cells=[cell]), "n.ipynb")


@pytest.fixture(scope="module")
def ranges():
    """Return parameters of every type."""
    return declare(RANGES)


@pytest.fixture
def notebook(tmp_path):
    """Return the path of a small experiment in a project of its own."""
    return write_notebook(tmp_path / "experiments" / "small.ipynb")


def test_parameters_are_read_with_type_default_and_meaning(notebook):
    declared = read_parameters(read_notebook(notebook), "small.ipynb")
    assert list(declared) == ["backend", "seed", "rate", "label", "share", "sizes", "fate"]
    assert (declared["rate"].expected, declared["rate"].default) == ("float", 0.1)
    assert declared["share"].meaning == "None takes all"
    assert declare("a: list[int] = [\n    1,\n]  # behind it")["a"].meaning == "behind it"


@pytest.mark.parametrize(
    ("name", "expected", "wrong"),
    [
        ("count", "int above 0", [0, -1, True, 1.0, "1"]),
        ("start", "int at least 0", [-1]),
        ("rate", "float above 0 and at most 1", [0, 1.1, np.nan, np.inf, True, "fast", 10**400]),
        ("share", "float at least 0 and below 1 | None", [1, -0.1, np.nan]),
        ("finite", "finite float", [np.nan, np.inf, -np.inf]),
        ("eighths", "int a multiple of 8", [7]),
        ("quarters", "float a multiple of 0.25", [0.3, np.nan]),
        ("name", "str of length at least 1 and of length at most 3", ["", "long", 3, None]),
        ("sizes", "list[int above 0] of length at least 1", [[], [0], [1, "2"], (1,)]),
        ("weights", "dict[str, float at least 0]", [{"a": -1}, {1: 1}, [1]]),
        ("day", "date", [datetime(2026, 1, 1), "2026-01-01", 5]),
        ("moment", "datetime", [date(2026, 1, 1), 5]),
        ("order", "Literal[1, 2, 'first', True]", [3, "second", None]),
        ("yes", "bool", [1, 0, "yes"]),
    ],
)
def test_values_out_of_range_are_refused_in_words(ranges, name, expected, wrong):
    for value in wrong:
        with pytest.raises(ParameterError) as caught:
            check_parameters(ranges, {name: value})
        assert f"{name}: expected {expected}" in str(caught.value)
        assert f"; got {excerpt(value)}" in str(caught.value)


@given(
    st.floats(), st.sampled_from(["gt", "ge", "lt", "le"]), st.floats(allow_nan=False, allow_infinity=False)
)
def test_a_range_is_what_python_compares(value, bound, limit):
    declared = declare(f"x: Annotated[float, Field({bound}={limit!r})] | None = None")
    if getattr(operator, bound)(value, limit):  # never so for NaN
        assert check_parameters(declared, {"x": value}) == {"x": value}
    else:
        with pytest.raises(ParameterError, match="x: expected float"):
            check_parameters(declared, {"x": value})


@pytest.mark.parametrize(
    "annotated",
    [
        *("float, Field(gt='a')", "str, Field(gt=0)", "int, Field(multiple_of=0)", "int, Field(strict=True)"),
        *("int, Field(max_length=3)", "float, Field(allow_inf_nan=0)", "int, Field(**{})"),
    ],
)
def test_ranges_that_make_no_sense_are_refused(annotated):
    with pytest.raises(ParameterError, match=r"n.ipynb: parameter x: "):
        declare(f"x: Annotated[{annotated}] = 1")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("seed: Annotated[int, Field(0)] = 0", r"Field takes gt, .*, all by name; got Field\(0\)"),
        ("seed: int = 'a'", "parameter seed: its default doesn't fit its type: expected int; got 'a'"),
        ("seed = 'a'  # type: int", "its default doesn't fit its type: expected int; got 'a'"),
        ("seed: PositiveInt = 0", "its default doesn't fit its type: expected int above 0; got 0"),
        ("x: str = '\ud800'", "the parameters cell can't be read: 'utf-8' codec"),
        (r"x: Literal['\ud800'] = 'a'", "parameter x: "),
        ("seed: int = (0\nrate = 1", "the parameters cell can't be read: line 1: '\\(' was never closed"),
        ("if seed:\n\n", "the parameters cell can't be read: line .: expected an indented block"),
    ],
)
def test_a_parameters_cell_that_cannot_be_read_says_why(source, message):
    with pytest.raises(ParameterError, match=f"n.ipynb: .*{message}"):
        declare(source)


def test_all_mistakes_in_a_cell_are_said_at_once():
    with pytest.raises(ParameterError, match=r"\A.*parameter a: .*\n.*parameter b: .*\Z"):
        declare("a: int = 'x'\nb: Annotated[int, Field(gt='a')] = 0\nc = 3")


@pytest.mark.parametrize(
    ("source", "expected", "default", "meaning"),
    [
        # The first example of papermill's documentation, and what else its inspection knows.
        ("x = 0.6", "float", 0.6, ""),
        ("x = 0.1  # type: float", "float", 0.1, ""),
        ("x = 1  # type: float A rate", "float", 1.0, "A rate"),
        ("x = [\n    'a', # first\n    'b'\n] # type: List[str] Nice", "list[str]", ["a", "b"], "Nice"),
        ("x = {}  # type: Dict[str, int] sizes", "dict[str, int]", {}, "sizes"),
        ("x: 'NoneType' = None", "any plain value", None, ""),
        ("x = None", "any plain value", None, ""),
        ("x = True", "bool", True, ""),
        ("x = [1, 'a']", "list", [1, "a"], ""),
        ("x = {'a': [None]}", "dict", {"a": [None]}, ""),
        ("x = date(2026, 1, 31)", "date", date(2026, 1, 31), ""),
        ("x = 0  # type: ignore", "int", 0, ""),
        ("x = 0  # type: (", "int", 0, "type: ("),
        ("x = 0  # type: a[(]", "int", 0, ""),
        ("x: typing.Optional[int] = 3", "int | None", 3, ""),
        ("x: Union[int, 'str'] = 3", "int | str", 3, ""),
        ("x: Union[Optional[int], str] = 3", "int | None | str", 3, ""),
        ("x: None | None = None", "None | None", None, ""),
        ("x: int = None", "int | None", None, ""),
        ("x: Path = 'data'", "str", "data", ""),
        ("x: tuple[int] = 1", "int", 1, ""),
        ("x: dict[int, int] = {}", "dict", {}, ""),
        ("x: 'a b' = 1", "int", 1, ""),
        ("x: Any = 1", "any plain value", 1, ""),
        ("x: Annotated[int, 'steps'] = 1", "int", 1, ""),
        ("x = 1\nx: float = 2", "float", None, ""),
    ],
)
def test_types_come_from_annotations_comments_or_defaults(source, expected, default, meaning):
    parameter = declare(source)["x"]
    assert (parameter.expected, parameter.meaning) == (expected, meaning)
    assert same(parameter.default, default)


def test_other_lines_are_fine():
    source = (
        "%%time\nimport numpy as np\n%matplotlib inline\nfiles = !ls\nprint(np)\nrate = 0.1\n"
        "half = rate / 2\na = b = 3\na.b = 1\nc, d = 1, 2\nlater: int\ndef f(): e = 1\n'words'\n"
        "sizes = [1]\nwhere = Path('x')\n"
    )
    declared = declare(source)
    assert list(declared) == ["files", "rate", "half", "a", "b", "c", "d", "later", "sizes", "where"]
    assert [parameter.written for parameter in declared.values()][1:3] == ["0.1", "rate / 2"]
    known = {"rate": 0.1, "a": 3, "b": 3, "c": 1, "d": 2, "sizes": [1]}
    assert check_parameters(declared, {}) == known
    given = {"half": 3, "where": {"a": [None, date(2026, 1, 1)]}, "later": 3}
    assert check_parameters(declared, given) == known | given
    with pytest.raises(ParameterError, match="later: expected int; got 'x'"):
        check_parameters(declared, ["later=x"])


@pytest.mark.parametrize(
    ("source", "known", "written"),
    [
        ("corr_top, diag = 1, None", {"corr_top": 1, "diag": None}, ["1", "None"]),
        ("(a, [b, c]), d = (1, [2, 3]), f()", {"a": 1, "b": 2, "c": 3}, ["1", "2", "3", "f()"]),
        ("a, *b = 1, 2, 3\nc, d = f()", {}, ["", "", "", ""]),
        ("a = b = 3", {"a": 3, "b": 3}, ["3", "3"]),
        ("a = b = []\na.append(1)", {}, ["[]", "[]"]),
        ("a: None", {}, [""]),
        (
            "if quick:\n    a = 1\nelif b := 3:\n    a = 2\nelse:\n    c = 3",
            {},
            ["1 (in a branch)", "3 (in a branch)"],
        ),
        ("try:\n    a = 1\nexcept E:\n    b: int = 2\nelse:\n    c = 3\nfinally:\n    d = 4", {}, None),
        (
            "try:\n    a = 1\nexcept* E:\n    pass\nwith f() as e:\n    b = 1\n"
            "match f():\n    case 1:\n        c = 1",
            {},
            None,
        ),
        ("a = 1\nif quick:\n    a = 2\n    b = 1", {}, ["1", "1 (in a branch)"]),
    ],
)
def test_whatever_a_cell_sets_can_be_given(source, known, written):
    declared = declare(source)
    assert written is None or [parameter.written for parameter in declared.values()] == written
    assert check_parameters(declared, {}) == known
    given = dict.fromkeys(declared, 7)
    assert check_parameters(declared, given) == given


def test_a_value_of_another_type_names_the_remedy():
    declared = declare("a = 7\nb = 0.5\nc = True\nd = 3  # type: int\ne = [1]")
    said = {
        "a=7.5": "int; got 7.5; remedy: its default says int; where float is meant too, write a: float = 7",
        "b=x": "got 'x'; remedy: its default says float; where str is meant too, write b: float | str = 0.5",
        "c=maybe": "c: expected bool, written true, yes, on, false, no or off; got 'maybe'; remedy: ",
        "d=7.5": "d: expected int; got 7.5",
        "e=None": "write e: list | None = [1]",
    }
    for text, message in said.items():
        with pytest.raises(ParameterError) as caught:
            check_parameters(declared, [text])
        assert message in str(caught.value)
        assert ("remedy" in str(caught.value)) == (text != "d=7.5")
    assert check_parameters(declare("a: float = 7"), ["a=7.5"]) == {"a": 7.5}


@pytest.mark.parametrize(
    "source",
    [
        *("x = f()", "x = 1 / 3", "x: int = [f()]", "x: float = float('y')", "x = (1, 2)", "x = {1: 2}"),
        *("x = date(2026, 13, 1)", "x = date(*f())", "x = datetime(2026, 1, 1, tzinfo=f())"),
        *("x = date(99999999999999999999, 1, 1)", "x = date(2026, 1, 1, **{})", "x = float(open)"),
        *("x = 1\nx += 1", "x = 1\nif x:\n    x = 2", "x = 1\nfor x in 'ab':\n    pass", "x = 1\ndel x"),
        *("x = [1]\nx.append(2)", "x = {}\nx['a'] = 2", "x = [1]\ny = x"),
    ],
)
def test_a_default_that_the_cell_computes_is_left_alone(source):
    declared = declare(source)
    assert (declared["x"].default, declared["x"].computed) == (None, True)
    assert check_parameters(declared, {}) == {}


def test_what_any_plain_value_is():
    declared = declare("x = None")
    for value in (None, True, 3, 0.5, "a", [1, [2]], {"a": None}, date(2026, 1, 1)):
        assert same(check_parameters(declared, {"x": value})["x"], value)
    for value in (np.float64(1), (1,), {1}, {1: 2}, b"a", 1j, [object()]):
        with pytest.raises(ParameterError, match="x: expected any plain value; got"):
            check_parameters(declared, {"x": value})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("3", 3), ("1e-3", 0.001), ("True", True), ("false", False), ("no", "no"), ("on", "on")),
        *(("None", None), ("a b", "a b"), ("[1, 2.5]", [1, 2.5]), ("[4", "[4"), ("", "")),
        ('{"a": [true, "3"]}', {"a": [True, "3"]}),
    ],
)
def test_untyped_texts_are_read_as_papermill_reads_them(text, value):
    parameter = declare("x = None")["x"]
    assert same(parameter.read(Plain(text)), value)
    assert same(parameter.read([text]), [text]), "what is quoted is a text"


def test_a_notebook_without_parameters_cell_takes_nothing():
    assert read_parameters(nbformat.v4.new_notebook(), "bare.ipynb") == {}
    with pytest.raises(ParameterError, match="x: unknown; the notebook takes nothing"):
        check_parameters({}, ["x=1"])


def test_of_several_tagged_cells_the_first_one_counts():
    tags = {"tags": ["parameters"]}
    cells = [nbformat.v4.new_code_cell(source, metadata=tags) for source in ("a = 1", "b = 2")]
    assert list(read_parameters(nbformat.v4.new_notebook(cells=cells), "n.ipynb")) == ["a"]


def test_what_is_no_notebook_is_refused_by_name(tmp_path):
    path = tmp_path / "torn.ipynb"
    whole = '{"nbformat": 4, "nbformat_minor": 4, "metadata": %s, "cells": [%s]}'
    cell = '{"cell_type": "markdown", "source": "", "metadata": %s}'
    odd = [whole % (about, cell % "{}") for about in ('"x"', "[]", "3")]
    odd += [whole % ("{}", cell % about) for about in ('"x"', "[]", '{"tags": null}', '{"tags": "x"}')]
    for text in ("{", "[]", "{}", *odd):
        path.write_text(text)
        with pytest.raises(ParameterError, match=r"a notebook at .*torn.ipynb; got a file that isn't one"):
            read_notebook(path)
    with pytest.raises(FileNotFoundError, match=r"expected a notebook at .*; got nothing there"):
        read_notebook(tmp_path)


def test_all_that_is_wrong_is_said_at_once(notebook):
    wrong = {"sead": 1, "seed": "1", "rate": "fast", "backend": "jax", "label": 3, "sizes": [1, "2"]}
    wrong |= {"share": True, "x" * 200: 0}
    with pytest.raises(ParameterError) as caught:
        check_parameters(read_parameters(read_notebook(notebook), "small.ipynb"), wrong)
    lines = str(caught.value).splitlines()
    assert {line.partition(":")[0] for line in lines} == set(wrong)
    assert "seed: expected int (seeds nothing); got '1'" in lines
    assert lines[0].startswith("sead: unknown (did you mean seed?); the notebook takes backend, seed,")
    assert lines[-1].startswith(f"{'x' * 200}: unknown; the notebook takes backend, seed,")


def test_a_zone_becomes_an_offset(ranges):
    summer = datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Paris"))
    checked = check_parameters(ranges, {"moment": summer})["moment"]
    assert repr(checked.tzinfo) == repr(timezone(timedelta(hours=2)))
    assert checked == summer


def test_a_wrong_value_of_any_size_can_be_shown():
    assert excerpt(10**5000).startswith("0x3")
    assert excerpt("a" * 1000).endswith("… (1002 characters)")
    assert excerpt([10**5000]) == "a list"


# Texts

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("count", {"3": 3, "1_000": 1000, "007": 7}),
        ("rate", {"1e-3": 0.001, ".5": 0.5, "1": 1.0}),
        ("weights", {'{"a": 1, "b": Infinity}': {"a": 1.0, "b": float("inf")}}),
        ("share", {"null": None, "None": None}),
        ("name", {text: text for text in ("no", "a:b", "1e3", '"a"')}),
        ("sizes", {"[4, 5]": [4, 5]}),
        ("day", {"2026-02-28": date(2026, 2, 28)}),
        ("moment", {"2026-02-28T12:00:00+01:00": datetime(2026, 2, 28, 12, tzinfo=timezone(HOUR))}),
        ("either", {"5": 5, "five": "five"}),
        ("both", {"2026-02-28": date(2026, 2, 28)}),
        ("both", {"2026-02-28T12:00:00Z": datetime(2026, 2, 28, 12, tzinfo=UTC), "None": None}),
        ("words", {"yes": "yes", "on": "on", "true": True, "1": "1"}),
        ("order", {"2": 2, "first": "first", "true": True}),
        ("yes", {"false": False, "No": False}),
    ],
)
def test_texts_are_read_by_the_declared_type(ranges, name, read):
    for text, value in read.items():
        assert same(ranges[name].read(Plain(text)), value)


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("count", {"-3": "-3", "3.0": "3.0", "no": "'no'", "0x1F": "'0x1F'"}),
        ("moment", {"5": "5", "007": "7", "2026-02-30T00:00": "'2026-02-30T00:00'"}),
        ("rate", {"-.5": "-0.5", ".inf": "inf", "-inf": "-inf", "12:30": "'12:30'", "no": "'no'"}),
        ("name", {"12:30": "'12:30'", "": "''"}),
        ("sizes", {"4": "4", "[4": "'[4'"}),
        ("weights", {'{"a": 1, "a": 2}': """'{"a": 1, "a": 2}'"""}),
        ("day", {"5": "5"}),
        ("order", {"4": "4"}),
        ("yes", {"0": "0"}),
    ],
)
def test_a_misfit_text_is_shown_as_meant(ranges, name, got):
    for text, shown in got.items():
        with pytest.raises(ParameterError, match=re.escape(f"; got {shown}") + "$"):
            ranges[name].read(Plain(text))


def test_values_from_the_command_line_are_read_by_their_type(notebook):
    declared = read_parameters(read_notebook(notebook), "small.ipynb")
    texts = ["seed=3", "rate=1e-3", "label=a=b", "share=null", "sizes=[4, 5]"]
    given = {"seed": 3, "rate": 0.001, "label": "a=b", "share": None, "sizes": [4, 5]}
    assert check_parameters(declared, texts).items() >= given.items()
    with pytest.raises(ParameterError) as caught:
        check_parameters(declared, ["seed", "rate=1", "rate=2", "sead=1"])
    first, second, third = str(caught.value).splitlines()
    assert (first, second) == ("expected name=value; got 'seed'", "rate: given twice")
    assert third.startswith("sead: unknown (did you mean seed?)")


@given(st.floats() | st.integers() | st.booleans() | st.none())
def test_what_python_writes_is_read_again(value):
    declared = declare("x: bool | int | float | None = None")["x"]
    assert same(declared.read(Plain(str(value))), value)


@pytest.mark.parametrize("source", ["x: int = 0", "x: float = 0.5", "x: list[int] = []", "x = None"])
def test_an_integer_of_thousands_of_digits_is_refused(source):
    digits = "1" * 5000
    text = f"[{digits}]" if "list" in source else digits
    with pytest.raises(ParameterError, match=r"x: expected .*; got '\[?111.*… \(500\d characters\)"):
        declare(source)["x"].read(Plain(text))


def test_what_is_quoted_is_a_text_but_for_dates(ranges):
    for name, raw in [
        ("count", "3"),
        ("order", "2"),
        ("either", ["3"]),
        ("sizes", ["1"]),
        ("yes", "true"),
        ("moment", "5"),
    ]:
        with pytest.raises(ParameterError, match=re.escape(f"; got {raw!r}")):
            ranges[name].read(raw)
    assert ranges["either"].read("3") == "3"
    assert ranges["order"].read("first") == "first"
    assert declare("x: list[date] = []")["x"].read(["2026-02-28"]) == [date(2026, 2, 28)]


def test_what_is_not_quoted_is_json_or_a_text():
    written = {"a": [Plain("1e-3"), "1e-3", Plain("null"), Plain(".5"), Plain("no"), Plain("-.inf")]}
    assert as_json(written) == '{"a": [1e-3, "1e-3", null, 0.5, "no", -Infinity]}'
    for text in ("no", "[4", '"a"', '{"a": 1, "a": 2}', "[" * 100_000):
        with pytest.raises(ValueError, match=r"Expecting|quotes|given twice: a|nested"):
            as_json(Plain(text))


def test_yaml_keeps_what_is_not_quoted_as_it_is_written():
    tree = read_yaml("a: no\nb: [1e-3, 12:30, 0o7, ~, '1']\non: {y: 2026-01-01}\n")
    assert tree == {"a": "no", "b": ["1e-3", "12:30", "0o7", "~", "1"], "on": {"y": "2026-01-01"}}
    assert [type(item).__name__ for item in tree["b"]] == ["Plain"] * 4 + ["str"]
    assert read_yaml("") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2", "line 1: given twice: a"),
        ("a: 1\nb:\n  c: {d: 1, 'd': 2}", "line 3: given twice: d"),
        ("a: &x 1", "line 1: anchors, aliases and tags aren't allowed"),
        ("a: *x", "line 1: anchors, aliases and tags aren't allowed"),
        ("a: !!python/object/apply:os.system [echo]", "anchors, aliases and tags aren't allowed"),
        ("a: !!int '3'", "anchors, aliases and tags aren't allowed"),
        ("a: 1\n---\nb: 2", "expected a single document .* but found another document"),
        pytest.param("[" * 10_000, "nested too deep", id="deep"),
        ("a: [", "expected the node content"),
        ("a: '\x00'", "special characters are not allowed"),
    ],
)
def test_yaml_that_could_surprise_is_refused(text, message):
    with pytest.raises(ParameterError, match=message):
        read_yaml(text)


# Literals

OFFSETS = st.integers(-82_800, 82_800).map(lambda s: timezone(timedelta(seconds=s))) | st.none()
SIGNS = "'\"\\\n\r\f\0\x85\u2028\u2029\u202e?\N{SNOWMAN}"
MAGIC = ["'" * 3, '"' * 3, "%%bash", "!ls", "%x", "# ", "'; import os #", "{x}", "$float", ">>> ", "In [1]: "]
EVIL = st.sampled_from([*SIGNS, *MAGIC])
TEXTS = st.lists(EVIL | st.text(), max_size=4).map("".join)
INTEGERS = st.integers() | st.integers(-(2**20_000), 2**20_000)
SCALARS = (
    st.none() | st.booleans() | INTEGERS | st.floats() | TEXTS | st.dates() | st.datetimes(timezones=OFFSETS)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)
NAMES = st.sampled_from(["seed", "float", "datetime", "math", "größe"])


def same(first, second):
    """Return whether two values are the same in type and, to the bit, in value; NaN is NaN."""
    if type(first) is not type(second):
        return False
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, int):
        return first == second
    return repr(first) == repr(second)


def is_literal(node):
    """Return whether syntax is a literal, or one of the calls that stand for what has none."""
    match node:
        case ast.Constant():
            return True
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return is_literal(operand)
        case ast.List(elts=items):
            return all(map(is_literal, items))
        case ast.Dict(keys=keys, values=values):
            return all(map(is_literal, [*keys, *values]))
        case ast.Attribute(attr="nan" | "inf", value=module):
            return ast.unparse(module) == "__import__('math')"
        case ast.Call():
            module, _, name = ast.unparse(node.func).rpartition(".")
            arguments = [*node.args, *(option.value for option in node.keywords)]
            known = name in ("date", "datetime", "timezone", "timedelta")
            return known and module == "__import__('datetime')" and all(map(is_literal, arguments))
    return ast.unparse(node) == "__import__('datetime').timezone.utc"


def notebook_with(*cells):
    """Return a notebook with a parameters cell that is followed by others."""
    new = nbformat.v4.new_code_cell
    tagged = new("x: int = 0", metadata={"tags": ["parameters"]})
    return nbformat.v4.new_notebook(cells=[new("1"), tagged, *map(new, cells)])


@settings(max_examples=200)
@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=3))
def test_what_the_notebook_reads_is_what_was_given(parameters):
    node = inject(notebook_with("2"), parameters)
    source = node.cells[2].source
    assert source.replace("\n", "").isprintable()
    assert TransformerManager().transform_cell(source) == source + "\n", "IPython reads a magic in it"
    statements = ast.parse(source).body
    assert [ast.unparse(statement.targets[0]) for statement in statements] == list(parameters)
    assert all(is_literal(statement.value) for statement in statements)
    variables = {"datetime": None, "math": None}  # what a notebook may have made of these names
    exec(source, variables)  # noqa: S102  # what a kernel does
    assert all(same(variables[name], value) for name, value in parameters.items())
    json.dumps(node.metadata, allow_nan=False, ensure_ascii=False).encode()


def test_one_cell_is_injected_behind_the_parameters():
    before, comment = notebook_with("2"), "# Set by gradtricks: the parameters of this run.\n"
    first = inject(before, {"x": 1})
    assert "papermill" not in before.metadata
    assert len(before.cells) == 3
    assert [cell.source for cell in first.cells] == ["1", "x: int = 0", f"{comment}x = 1", "2"]
    assert (first.cells[2].metadata.tags, first.cells[2].id) == ([INJECTED], INJECTED)
    second = inject(first, {"x": float("nan")})
    injected = f'{comment}x = __import__("math").nan'
    assert [cell.source for cell in second.cells] == ["1", "x: int = 0", injected, "2"]
    assert second.metadata.papermill.parameters == {"x": {"$float": "nan"}}
    nbformat.validate(second)
    assert inject(second, {}).cells == before.cells
    for about in ("x", [3], None):
        before.metadata["papermill"] = about
        assert inject(before, {"x": 1}).metadata.papermill == {"parameters": {"x": 1}}


def test_an_older_notebook_stays_valid():
    node = notebook_with()
    node.nbformat_minor = 4
    for cell in node.cells:
        del cell["id"]
    nbformat.validate(inject(node, {"x": 1}))


def test_what_cannot_be_injected_is_refused():
    with pytest.raises(ValueError, match="expected a cell tagged 'parameters'; got none"):
        inject(nbformat.v4.new_notebook(), {"x": 1})
    for name in ("x = 1; y", "import", "a.b", ""):
        with pytest.raises(ValueError, match=r"expected the name of a variable; got "):
            inject(notebook_with(), {name: 1})
    somewhere = datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Paris"))
    for value in (np.float64(1), (1,), {1}, b"a", 1j, {1: 2}, somewhere, sys):
        with pytest.raises(TypeError, match="expected None, bool, int, float, str, date"):
            literal(value)


def fingerprint(values):
    """Say all of some values in ASCII; long integers in hexadecimal, since Python refuses them otherwise."""
    return " ".join(hex(value) if type(value) is int else ascii(value) for value in values)


def test_a_real_kernel_reads_what_was_given(tmp_path, kernels):
    given = [
        *(2**63, -(10**5000), -0.0, float("nan"), float("-inf"), 5e-324, date(2026, 1, 1), None, True),
        *(f"{SIGNS} 雪 \U0001f600", "'" * 3 + '"' * 3, "%%bash\n!ls", {"$float": [[], {}]}),
        datetime(2026, 1, 1, 12, 30, 0, 5, tzinfo=timezone(timedelta(hours=-3, seconds=7))),
    ]
    node = notebook_with(
        f"float = datetime = None\n{inspect.getsource(fingerprint)}", "print(fingerprint(given))"
    )
    node.cells[1].source = "given: list[int] = []"
    kernels.run(node, {"given": given}, tmp_path / "out.ipynb")
    cells = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells
    assert cells[4].outputs[0].text == f"{fingerprint(given)}\n"
