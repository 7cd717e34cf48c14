"""`scrun metrics`, read by a real Prometheus, and asked by the dashboard of the examples."""

import contextlib
import json
import os
import re
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from matplotlib.figure import Figure

from scrun.commands.metrics import families
from scrun.model.record import Record, write_record
from tests import CHECKOUT
from tests.harness.daemons import program
from tests.harness.pages import HOWTO, blocks
from tests.harness.site import scrun_binary
from tests.harness.wait import wait_until
from tests.unit.scrun.commands.test_listing import RUNNING, Root

pytestmark = pytest.mark.covers("scrun metrics")

BOARD = json.loads((CHECKOUT / "docs" / "examples" / "grafana" / "scrun.json").read_text())
SCHEMA = CHECKOUT / "tests" / "data" / "schemas" / "dashboard.json"
PANELS: list[dict[str, Any]] = BOARD["panels"]

Series = dict[str, list[tuple[float, float]]]
"""Pairs of a moment and a value, by what the legend says."""


def test_the_dashboard_is_one_of_grafanas() -> None:
    jsonschema.validate(BOARD, json.loads(SCHEMA.read_text()))
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    places = {
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in PANELS
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    }
    assert len(places) == sum(panel["gridPos"]["w"] * panel["gridPos"]["h"] for panel in PANELS)
    assert max(x for x, _ in places) < 24
    known = {variable["name"] for variable in BOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD))) == known


def test_its_metrics_are_ours() -> None:
    asked = set(re.findall(r"scrun_\w+", json.dumps(BOARD)))
    row = {"status": "created", "created": "", "annotations": {"org.scrun.pending": "Resources"}}
    ours = {sample.name for family in families([row], 0.0) for sample in family.samples}
    assert asked <= ours
    assert {name.removesuffix("_bucket") for name in asked} == {
        family.name for family in families([], 0.0)
    }


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    made = Root(tmp_path / "r")
    yield made
    made.server.close()


class Prometheus:
    """One that scrapes a server, by the configuration of docs/howto/metrics.md."""

    def __init__(self, directory: Path, server: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._url = f"127.0.0.1:{free.getsockname()[1]}"
        [page] = [
            block.text for block in blocks(HOWTO / "metrics.md") if "scrape_configs" in block.text
        ]
        file = directory / "prometheus.yml"
        often = "global:\n  scrape_interval: 1s\n  scrape_timeout: 1s\n"
        file.write_text(often + page.replace("127.0.0.1:9417", server))
        command = [
            program("prometheus"), f"--config.file={file}", f"--web.listen-address={self._url}",
            f"--storage.tsdb.path={directory}/data",
        ]  # fmt: skip
        self._log = (directory / "prometheus.log").open("wb")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def ask(self, path: str, **words: object) -> Any:
        """Ask its API; nothing if it does not answer yet."""
        url = f"http://{self._url}/api/v1/{path}?{urllib.parse.urlencode(words)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    def series(self, query: str, legend: str, since: float) -> Series:
        query = query.replace("$instance", ".*")
        found = self.ask("query_range", query=query, start=since, end=time.time(), step=1)
        series: Series = {}
        for one in found["result"]:
            name = legend
            for label, text in one["metric"].items():
                name = name.replace(f"{{{{{label}}}}}", text)
            series[name] = [(moment, float(value)) for moment, value in one["values"]]
        return series

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


@contextlib.contextmanager
def served(root: Root) -> Iterator[str]:
    command = [scrun_binary(), "--root", str(root.path), "metrics", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().decode().split("/")[2]
        finally:
            server.kill()


def lives(number: int, second: int, began: float) -> Record:
    """One of those that are created at once, start one after the other, and end."""

    def stamp(after: float) -> str:
        return datetime.fromtimestamp(began + after, UTC).isoformat()

    told = {"org.scrun.engine": "slurm"}
    status, starts, ends = "created", 1 + number // 2, 5 + number
    if second < starts:
        told["org.scrun.pending"] = "Resources" if number < 6 else "Priority"
    else:
        status, told["org.scrun.started"] = "running", stamp(starts)
    if second >= ends:
        status, told["org.scrun.reason"] = "stopped", "oom" if number % 4 == 3 else "exited"
    return msgspec.structs.replace(
        RUNNING, id=f"c{number}", status=status, annotations=told, created=stamp(0)
    )


def test_it_is_scraped(root: Root, tmp_path: Path) -> None:
    """SCRUN_PICTURE names a file that gets the picture of docs/howto/metrics.md."""
    with served(root) as address, contextlib.ExitStack() as stack:
        found = Prometheus(tmp_path, address)
        stack.callback(found.close)
        wait_until(
            "it is scraped",
            lambda: (found.ask("query", query="up") or {"result": []})["result"][:1], 30,
        )  # fmt: skip
        began = time.time()
        for second in range(16):
            for number in range(12):
                record = lives(number, second, began)
                if second:
                    write_record(str(root.path / record.id), record)
                else:
                    root.add(record)
            time.sleep(max(0.0, began + second + 1 - time.time()))
        [up] = found.ask("query", query="up")["result"]
        assert (up["metric"]["job"], up["value"][1]) == ("scrun", "1")
        shown = [
            (panel, {
                name: values for target in panel["targets"]
                for name, values in found.series(target["expr"], target["legendFormat"],
                                                 began).items()
            }) for panel in PANELS
        ]  # fmt: skip
    by_title = {panel["title"]: series for panel, series in shown}
    assert {*by_title["Containers"]} >= {"created", "running", "stopped"}
    assert max(value for _, value in by_title["Containers"]["running"]) > 2
    assert {*by_title["Why they wait"]} == {"Resources", "Priority"}
    assert max(value for _, value in by_title["The longest wait"]["Priority"]) > 2
    assert {*by_title["How they ended"]} == {"exited", "oom"}
    # bounds are 1, 3 and 10 s, and they took 1 to 6 s
    half, most = (by_title["From create to start"][name][-1][1] for name in
                  ("half of them", "95 of 100"))  # fmt: skip
    assert 1 <= half <= most <= 10
    draw(shown, began, Path(os.environ.get("SCRUN_PICTURE", tmp_path / "metrics.png")))


def draw(shown: list[tuple[dict[str, Any], Series]], began: float, file: Path) -> None:
    figure = Figure(figsize=(10, 9), layout="constrained")
    for place, (panel, series) in enumerate(shown, 1):
        axes = figure.add_subplot(3, 2, place)
        axes.set_title(panel["title"])
        for name, values in sorted(series.items()):
            axes.step([moment - began for moment, _ in values], [value for _, value in values],
                      where="post", label=name)  # fmt: skip
        axes.set_xlim(0, 16)
        axes.set_xticks(range(0, 17, 4))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("seconds")
        axes.set_ylabel("seconds" if panel["fieldConfig"]["defaults"]["unit"] == "s" else "")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    figure.savefig(file, dpi=80, metadata={"Software": None})
    assert 10_000 < file.stat().st_size < 200_000
