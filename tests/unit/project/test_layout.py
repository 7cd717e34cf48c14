"""The tests' folders are those of the product, and tools/test runs all of them."""

import re
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.harness.program import output_of

TESTS = CHECKOUT / "tests"


def folders(above: Path) -> set[Path]:
    """Every folder below one that has tests in it."""
    return {path.parent.relative_to(above) for path in above.rglob("test_*.py")}


@pytest.mark.parametrize("kind", ["unit", "component"])
def test_the_tests_have_the_folders_of_the_product(kind: str) -> None:
    found = {folder for folder in folders(TESTS / kind) if folder.parts[:1] != ("project",)} - {
        Path("stress")
    }
    assert {folder.parts[0] for folder in found} == {"scrun", "supervisor"}
    assert [str(path) for path in sorted(found) if not any((CHECKOUT / path).glob("*.py"))] == []


def test_every_test_with_a_cluster_is_in_one_part_of_the_lanes(tmp_path: Path) -> None:
    """With bash, as the names are put together."""
    text = (CHECKOUT / "tools" / "test").read_text()
    [parts] = re.findall(r"^others=.*?^}\n", text, re.MULTILINE | re.DOTALL)
    script = f"""{parts}
for one in pure shim container; do eval "run_$one() {{ :; }}"; done
run_some() {{ shift; printf '%s\\n' "$@"; }}
results={tmp_path} worst=0
lane"""
    words = output_of(["bash", "-euc", script], cwd=CHECKOUT).splitlines()
    files = [found for word in words for found in ([word] if ".py" in word else under(word))]
    assert sorted(files) == sorted([*under("tests/integration"), *under("tests/clients")])


def under(folder: str) -> list[str]:
    return [str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / folder).rglob("test_*.py")]


@pytest.mark.parametrize("part", ["run_shim", "run_container"])
def test_what_runs_by_another_launch_is_there(part: str) -> None:
    """With bash, as the names are put together."""
    text = (CHECKOUT / "tools" / "test").read_text()
    [function] = re.findall(rf"^{part}\(\) {{\n.*?^}}\n", text, re.MULTILINE | re.DOTALL)
    script = f'run() {{ printf "%s\\n" "$@"; }}\n{function}{part}\n'
    files = [word for word in output_of(["bash", "-euc", script]).splitlines() if ".py" in word]
    assert len(files) > 1
    assert [file for file in files if not (CHECKOUT / file).exists()] == []


def test_nobody_waits_by_select() -> None:
    """It fails for descriptors above 1,023, which a supervisor of many containers has."""
    files = [*(CHECKOUT / "scrun").rglob("*.py"), *(CHECKOUT / "supervisor").rglob("*.py")]
    found = [str(path) for path in files if re.search(r"\bselect\.select\(", path.read_text())]
    assert found == []


def test_descriptors_come_close_on_exec() -> None:
    """`socket.recv_fds` leaves them open in programs that another thread starts."""
    files = [*(CHECKOUT / "scrun").rglob("*.py"), *(CHECKOUT / "supervisor").rglob("*.py")]
    for path in files:
        text = path.read_text()
        assert "recv_fds(" not in text, path
        assert text.count(".recvmsg(") == text.count("MSG_CMSG_CLOEXEC)"), path
