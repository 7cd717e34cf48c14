"""The lines that `scrun map` runs."""

import json
from pathlib import Path

import pytest

from scrun.commands.map import read_tasks
from scrun.core.errors import UsageError

_BOX = "docker://box"


def read(directory: Path, text: str, image: str | None = None) -> dict[int, list[str]]:
    file = directory / "work"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    return read_tasks(str(file), image)


def test_words_of_run(tmp_path: Path) -> None:
    text = "\n--mem 1G docker://box echo 'a b'  # why\n# nothing\n--bundle b one\n \t\n./dir"
    text += "\n--of-a-script ./b"
    assert read(tmp_path, text) == {
        2: ["--mem", "1G", "docker://box", "echo", "a b"],
        4: ["--bundle", "b", "one"],
        6: ["./dir"],
        7: ["--of-a-script", "./b"],
    }


def test_arguments_of_an_image(tmp_path: Path) -> None:
    assert read(tmp_path, "--mem 1\r\n\n\udcff", _BOX) == {
        1: [_BOX, "--mem", "1"], 3: [_BOX, "\udcff"],
    }  # fmt: skip


def test_a_mark_of_utf_8(tmp_path: Path) -> None:
    """Editors and shells of Windows begin a file with it."""
    assert read(tmp_path, '\ufeff{"args": ["a"]}\n./dir', _BOX) == {
        1: [_BOX, "a"], 2: [_BOX, "./dir"],
    }  # fmt: skip


def test_objects(tmp_path: Path) -> None:
    requests = {"cpus": 2, "mem": "1G", "time": "10", "partition": "p"}
    one = {"image": "./dir", "args": ["a b", 3], "env": {"X": "= y"}, "requests": requests}
    words = ["--cpus-per-task=2", "--mem=1G", "--time=10", "--partition=p", "--env=X== y"]
    text = f"{json.dumps(one)}\n {{}}\ntrue"
    assert read(tmp_path, text, _BOX) == {
        1: [*words, "./dir", "a b", "3"], 2: [_BOX], 3: [_BOX, "true"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("'", "No closing quotation"),
        ("{", "Expecting property name"),
        ('{"a":' + "[" * 100000, "recursion"),
        ("{}", "'image' has to be an image, or --image names one"),
        ('{"image": "box"}', "box does not name an image: write docker://box, or ./box"),
        ('{"image": 1}', "'image' has to be"),
        ('{"image": "./b", "args": "x"}', "'args' has to be a list of strings"),
        ('{"image": "./b", "args": [null]}', "'args' has to be"),
        ('{"image": "./b", "env": {"A": true}}', "'env' has to be an object with strings"),
        ('{"image": "./b", "requests": {"cpus": 1.5}}', "'requests' has to be"),
        ('{"image": "./b", "requests": {"cpu": 1}}', "request 'cpu' is unknown: use cpus,"),
        ('{"image": "./b", "argv": []}', "'argv' is unknown: use image, args, env, requests"),
        ('{"image": "./b", "args": ["\\u0000"]}', "a word has a NUL, or is too long"),
        ('{"image": "./b", "args": ["\\ud800"]}', "surrogates not allowed"),
        ("./b " + "x" * 131072, "a word has a NUL, or is too long"),
        ("a\0", "a word has a NUL, or is too long"),
        ("--detach ./b", "only `run` is possible here, without --detach"),
        ("--help", "only `run` is possible here"),
        ("--bundle b", "run needs a container-id"),
        ("alpine echo", "unexpected argument 'echo'"),
    ],
)
def test_what_is_wrong(tmp_path: Path, line: str, why: str) -> None:
    with pytest.raises(UsageError, match=rf"work, line 2: .*({why})"):
        read(tmp_path, f"./b\n{line}\n./b")


def test_no_image(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"--image: box does not name an image: write docker://box"
    ):
        read(tmp_path, "", "box")


def test_too_much() -> None:
    with pytest.raises(UsageError, match="/dev/zero: has more than 16 MiB: divide it"):
        read_tasks("/dev/zero", None)


def test_a_message_is_short(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        read(tmp_path, json.dumps({"x" * 100000: 1}))
    assert len(str(raised.value)) <= 2000
