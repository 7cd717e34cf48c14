"""The file of `--report` (tools/bench, tools/chaos), and the page that the site makes of it."""

import importlib.util
import io
import json
from pathlib import Path
from types import ModuleType

import pytest

from tests import CHECKOUT
from tests.stress import results
from tests.stress.bench.figures import Goal
from tests.stress.chaos.report import Report


@pytest.fixture(scope="module")
def site() -> ModuleType:
    """The site's module, which is in no package."""
    spec = importlib.util.spec_from_file_location("r", CHECKOUT / "docs" / "site" / "results.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_goals_become_a_table_of_the_page(tmp_path: Path, site: ModuleType) -> None:
    goals = [Goal("create", "salloc | sh", 1.5234, 1.3), Goal("stdout", "srun", 0.99, 0.98, True)]
    tables = {"operations": [goal.cells for goal in goals]}
    command = ["/x/tools/bench", "--report", "/x/y", "--rounds", "3", "--user=me"]
    results.write(tmp_path / "bench.json", command, tables, {"engine": "slurm"})
    found = json.loads((tmp_path / "bench.json").read_text())
    assert found["tables"]["operations"][0]["ratio"] == 1.5234
    page = site.page(tmp_path, tmp_path)
    assert "`tools/bench --rounds 3`" in page
    assert "engine slurm" in page
    assert "### operations" in page
    assert "| what | against | ratio | goal | met |\n|---|---|---|---|---|\n" in page
    assert "| create | salloc \\| sh | 1.52 | ≤ 1.3 | **no** |" in page
    assert "| stdout | srun | 0.99 | ≥ 0.98 | yes |" in page


def test_a_run_of_chaos_says_what_went_wrong(tmp_path: Path, site: ModuleType) -> None:
    report = Report(7, 10, 2, io.StringIO(), io.StringIO())
    report.left({"jobs": ["1", "2"]})
    tables = {"faults": report.cells()}
    results.write(tmp_path / "chaos.json", ["tools/chaos"], tables, report.about())
    page = site.page(tmp_path, tmp_path)
    assert "seed 7" in page
    assert "left 2 jobs" in page
    assert "Nothing." in page


def test_the_last_result_is_the_first(tmp_path: Path, site: ModuleType) -> None:
    for name, date in (("2026-01-01", "first"), ("2026-02-01", "second")):
        results.write(tmp_path / f"{name}.json", [f"tools/{date}"], {})
    page = site.page(tmp_path, tmp_path)
    assert page.index("tools/second") < page.index("tools/first")


def test_without_results_there_is_no_page(tmp_path: Path, site: ModuleType) -> None:
    assert site.page(tmp_path, tmp_path) == ""
    assert site.page(tmp_path / "missing", tmp_path) == ""


def test_ratios_and_growth_are_drawn(tmp_path: Path, site: ModuleType) -> None:
    goals = [Goal("create", "salloc", 1.5, 1.3), Goal("stdout", "srun", 0.99, 0.98, True)]
    growth: list[dict[str, object]] = [
        {"containers": size, "create, ms": 5.0 + size} for size in (1, 10, 100)
    ]
    tables = {"operations": [goal.cells for goal in goals], "growth": growth, "faults": []}
    results.write(tmp_path / "bench.json", ["tools/bench"], tables)
    page = site.page(tmp_path, tmp_path)
    drawn = sorted(path.name for path in tmp_path.glob("*.svg"))
    assert drawn == ["bench-0.svg", "bench-1.svg"]
    for name in drawn:
        assert f"]({name})" in page
        assert "<svg" in (tmp_path / name).read_text()
