"""Which calls of tasks share a template, and what becomes of those that wait for it."""

import fcntl
import os
import posix
from pathlib import Path

import pytest

from scrun.cli.parse import Parsed, parse
from scrun.client import template
from scrun.client.template import Template, is_current
from scrun.core.place import Place, is_of_task
from scrun.core.templates import FOLDER, VARIABLE, signature
from scrun.supervisor.shim.runtime import of_slurm

TASK = Place("7", "7.0", "1")
ENVIRONMENT = {b"PATH": b"/bin", b"SLURM_PROCID": b"1", b"SLURM_JOB_ID": b"7"}


@pytest.fixture(autouse=True)
def _task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(template, "place", lambda: TASK)
    monkeypatch.setattr(posix, "isatty", lambda _: False)
    monkeypatch.setattr(posix, "environ", dict(ENVIRONMENT))
    (tmp_path / "root").mkdir(mode=0o700)
    (tmp_path / "image").mkdir()
    (tmp_path / "s.toml").write_text("")


def call(tmp_path: Path, *words: str) -> Parsed:
    before = ["--root", f"{tmp_path}/root", "--config-file", f"{tmp_path}/s.toml", "run"]
    return parse([*before, *words])


def key(tmp_path: Path, *words: str) -> str:
    """The name under which a call looks for a template; "": it looks for none."""
    with Template(call(tmp_path, *words)):
        return posix.environ.get(VARIABLE, b"").decode()


def fresh(tmp_path: Path, *words: str) -> str:
    found = key(tmp_path, *words)
    for path in (tmp_path / "root" / FOLDER).glob("*"):
        path.unlink()
    return found


def test_slurms_variables_set_nobody_apart(tmp_path: Path) -> None:
    image = f"{tmp_path}/image"
    first = fresh(tmp_path, image, "true")
    assert len(first) == 32
    posix.environ.update({b"SLURM_PROCID": b"2", b"PMI_RANK": b"2", b"TMPDIR": b"/tmp"})
    assert fresh(tmp_path, image, "true") == first
    posix.environ[b"MINE"] = b"1"
    assert fresh(tmp_path, image, "true") != first


def test_what_sets_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = f"{tmp_path}/image"
    found = [fresh(tmp_path, image, "true"), fresh(tmp_path, image, "false")]
    found.append(fresh(tmp_path, "--read-only", image, "true"))
    found.append(fresh(tmp_path, f"--mount={image}:/mnt", image, "true"))
    posix.environ[b"SLURM_CONF"] = b"/another"
    found.append(fresh(tmp_path, image, "true"))
    umask = os.umask(0o027)
    found.append(fresh(tmp_path, image, "true"))
    os.umask(umask)
    (tmp_path / "image" / "new").mkdir()
    found.append(fresh(tmp_path, image, "true"))
    (tmp_path / "s.toml").write_text("idle_timeout = 1\n")
    found.append(fresh(tmp_path, image, "true"))
    monkeypatch.chdir(tmp_path)
    found.append(fresh(tmp_path, image, "true"))
    assert all(found)
    assert len({*found}) == len(found)


def test_what_is_in_a_mount_does_not_count(tmp_path: Path) -> None:
    source = tmp_path / "data"
    source.mkdir()
    words = (f"--mount={source}:/data", f"{tmp_path}/image", "true")
    before = fresh(tmp_path, *words)
    (source / "file").touch()
    assert fresh(tmp_path, *words) == before


@pytest.mark.parametrize(
    "word", ["--detach", "--name=x", "--keep", "--env=SLURM_PROCID", "--writable"]
)
def test_what_is_never_shared(tmp_path: Path, word: str) -> None:
    assert not key(tmp_path, word, f"{tmp_path}/image", "true")
    assert not (tmp_path / "root" / FOLDER).exists()


def test_pmix_has_a_directory_for_each_step(tmp_path: Path) -> None:
    posix.environ[b"PMIX_RANK"] = b"0"
    assert not key(tmp_path, f"{tmp_path}/image", "true")


def test_no_template_in_a_directory_of_others(tmp_path: Path) -> None:
    (tmp_path / "root").chmod(0o777)
    assert not key(tmp_path, f"{tmp_path}/image", "true")


def test_a_failure_holds_nobody_up(tmp_path: Path) -> None:
    """Those who wait do not fail one after the other."""
    image = f"{tmp_path}/image"
    assert key(tmp_path, image, "true")  # nothing was made
    assert not key(tmp_path, image, "true")


def test_others_wait_for_the_first(tmp_path: Path) -> None:
    with Template(call(tmp_path, f"{tmp_path}/image", "true")) as first:
        [lock] = (tmp_path / "root" / FOLDER).glob("*.lock")
        with lock.open() as file:
            with pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            first.made("")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_damaged_one_is_none(tmp_path: Path) -> None:
    name = key(tmp_path, f"{tmp_path}/image", "true")
    (tmp_path / "root" / FOLDER / name).write_bytes(b"[")
    assert key(tmp_path, f"{tmp_path}/image", "true") == name


def test_current(tmp_path: Path) -> None:
    paths = [(str(path), signature(str(path))) for path in (tmp_path / "image", tmp_path / "none")]
    content: dict[str, object] = {"until": float("inf"), "depends": paths}
    assert is_current(content)
    (tmp_path / "none").touch()
    assert not is_current(content)
    assert not is_current({"until": 0.0, "depends": []})


def test_variables_of_a_task_are_those_of_the_shim() -> None:
    names = ["SLURM_X", "SLURMD_X", "PMI_X", "PMIX_X", "CUDA_VISIBLE_DEVICES", "HOME", "CUDA_X"]
    names += [
        "GPU_DEVICE_ORDINAL",
        "ROCR_VISIBLE_DEVICES",
        "ZE_AFFINITY_MASK",
        "ZE_AFFINITY_MASK2",
    ]
    assert [*of_slurm(dict.fromkeys(names, ""))] == [n for n in names if is_of_task(n.encode())]
