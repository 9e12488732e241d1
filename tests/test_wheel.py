"""What a user's pip installs: the package, all of it and nothing else."""

import re
import shutil
import subprocess
import sys
from email import message_from_string
from pathlib import Path
from zipfile import ZipFile

import pytest

import gradtricks

ROOT = Path(__file__).resolve().parents[1]
FILES = ("pyproject.toml", "README.md", "LICENSE", "Makefile")
IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Copy what a wheel is made of, as setuptools writes beside it, and what must stay out of it."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "src", folder / "src", ignore=IGNORED)
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    for name in ("tests/test_masking.py", "experiments/masking.ipynb", "book/masking.md", "conftest.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(next(ROOT.rglob(Path(name).name)), folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(project):
    code = "import setuptools.build_meta as s; s.build_wheel('dist')"
    subprocess.run([sys.executable, "-c", code], cwd=project, check=True, capture_output=True)
    (path,) = project.glob("dist/*.whl")
    with ZipFile(path) as archive:
        return {name: archive.read(name).decode(errors="ignore") for name in archive.namelist()}


def read_about(wheel, name):
    return wheel[f"gradtricks-{gradtricks.__version__}.dist-info/{name}"]


def test_the_wheel_holds_the_package_alone(project, wheel):
    package = {str(path.relative_to(project / "src")) for path in project.glob("src/gradtricks/**/*.*")}
    assert {name for name in wheel if ".dist-info/" not in name} == package
    assert "gradtricks/py.typed" in package
    assert {Path(name).suffix for name in package} <= {
        ".py",
        ".pyi",
        ".typed",
        ".md",
        ".mplstyle",
        ".ttf",
        ".txt",
    }


def test_the_wheel_says_what_it_needs_and_brings(wheel):
    about = message_from_string(read_about(wheel, "METADATA"))
    assert about["Version"] == gradtricks.__version__
    assert about["Requires-Python"] == ">=3.11"
    versions = re.findall(r"Python :: (3\.\d+)", " ".join(about.get_all("Classifier")))
    assert versions == ["3.11", "3.12", "3.13"]
    needed = [name for name in about.get_all("Requires-Dist") if "extra ==" not in name]
    assert sorted(needed) == ["lazy-loader", "numpy>=2"]
    assert "gradtricks = gradtricks.cli:app" in read_about(wheel, "entry_points.txt")


def test_a_project_without_an_address_is_not_released(project):
    settings = (project / "pyproject.toml").read_text()
    (project / "pyproject.toml").write_text(settings.replace("[project.urls]", "[project.places]"))
    done = subprocess.run(["make", "dist"], cwd=project, capture_output=True, text=True)
    (project / "pyproject.toml").write_text(settings)
    assert done.returncode == 2
    assert "got no [project.urls] in pyproject.toml; remedy: write Documentation" in done.stdout
    assert not (project / ".venv-dist").exists()
