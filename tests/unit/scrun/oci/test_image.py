"""Images on disk: which one is meant, and what is no image."""

import json
from pathlib import Path

import pytest

from scrun.core.errors import BundleError
from scrun.oci.image import architecture, find_image
from tests.harness.limits import limited

NAME = "org.opencontainers.image.ref.name"


def layout(path: Path, index: object) -> str:
    path.mkdir()
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    text = index if isinstance(index, str) else json.dumps(index)
    (path / "index.json").write_text(text)
    return str(path)


def of(*names: str) -> dict[str, object]:
    return {"manifests": [{"annotations": {NAME: name}} for name in names]}


@pytest.mark.covers("scrun bundle")
@pytest.mark.parametrize(
    ("names", "asked", "tag"),
    [
        (["one"], "", "one"),
        (["one", "latest"], "", "latest"),
        (["one", "two"], ":two", "two"),
        (["one", "one"], "", "one"),
        (["a/b:c"], ":a/b:c", "a/b:c"),
        (["a/b:c"], "", "a/b:c"),
        ([""], "", ""),
    ],
)
def test_which_is_meant(tmp_path: Path, names: list[str], asked: str, tag: str) -> None:
    path = layout(tmp_path / "i", of(*names))
    image = find_image(path + asked)
    assert (image.layout, image.tag) == (path, tag)


@pytest.mark.parametrize(
    ("index", "told"),
    [
        ({}, "there is no image in it"),
        ({"manifests": [None, 7, []]}, "there is no image in it"),
        (
            {"manifests": [None, 7, {}, {"annotations": 5}, {"annotations": {NAME: 5}}]},
            "3 are there, and none has a tag",
        ),
        ({"manifests": [{"annotations": {"other": "x"}}, *of("a", "b")["manifests"]]}, ": a, b$"),  # type: ignore[misc]
    ],
)
def test_odd_manifests_have_no_tag(tmp_path: Path, index: object, told: str) -> None:
    with pytest.raises(BundleError, match=told):
        find_image(layout(tmp_path / "i", index))


def test_an_image_without_a_tag_of_several_platforms(tmp_path: Path) -> None:
    machines = ("s390x", architecture(), "riscv64")
    platforms = [{"os": "linux", "architecture": machine} for machine in machines]
    index = {"manifests": [{"platform": platform} for platform in platforms]}
    image = find_image(layout(tmp_path / "i", index))
    assert image.descriptor == {"platform": platforms[1]}


@pytest.mark.parametrize(
    "index",
    ["", "[", "[]", '{"manifests": 5}', '{"manifests": {}}', "[" * 10_000, "[{}," * 200_000],
)
def test_an_index_that_is_none(tmp_path: Path, index: str) -> None:
    path = layout(tmp_path / "i", index)
    with limited(2, 200), pytest.raises(BundleError, match=r"index\.json: "):
        find_image(path)


@pytest.mark.parametrize("name", ["/nowhere/at/all", "/etc/passwd", "", "a\0b", "/nowhere:x"])
def test_no_layout(name: str) -> None:
    with pytest.raises(BundleError):
        find_image(name)
