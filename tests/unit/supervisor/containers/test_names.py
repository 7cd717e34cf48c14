"""What a container's job is called, from what engines and images say."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.model.record import Record
from scrun.oci.config import Bundle, parse
from scrun.settings.file.load import Settings
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.containers.names import Names, find_names, recorded
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.log.journal import Shown

ID = "5" * 64
DIGEST = "sha256:" + "a" * 64


def found(
    annotations: dict[str, str],
    identity: str = ID,
    path: str = "/b",
    hostname: str = "",
    mounts: Sequence[str] = (),
) -> Names:
    config = {
        "ociVersion": "1.0.2", "root": {"path": "r"}, "process": {"args": ["x"], "cwd": "/"},
        "annotations": annotations, "hostname": hostname,
        "mounts": [{"destination": "/etc/x", "source": source} for source in mounts],
    }  # fmt: skip
    raw, typed = parse(json.dumps(config).encode())
    request = CreateRequest(
        identity, path, None, "/", None, ChildEnv({}), Settings(), Shown(), None
    )
    told = find_names(request, Bundle(path, "c", typed, raw, "/r"), 0)
    return recorded(Record(identity, annotations={**annotations, **told}))


def test_an_id_of_an_engine_is_no_name() -> None:
    assert found({}) == Names()
    assert found({}, "web") == Names("web")
    assert Names().job_name("%c") == Names().job_name("%p-%i") == "scrun"
    assert Names().comment == ""


def test_kubernetes() -> None:
    names = found(
        {
            "io.kubernetes.container.name": "web",
            "io.kubernetes.pod.name": "shop",
            "io.kubernetes.cri-o.SandboxID": "6" * 64,
            "io.kubernetes.cri-o.ImageName": f"r.example:5000/a/nginx@{DIGEST}",
        }
    )
    assert names == Names("web", "r.example:5000/a/nginx", DIGEST, "shop")
    assert names.comment == f" image=r.example:5000/a/nginx@{DIGEST} name=web pod=shop"
    assert names.job_name("%p.%c-%i%%") == "shop.web-nginx"
    assert found({"io.kubernetes.cri-o.SandboxID": "6" * 64}).pod == ""


def test_what_is_unknown_is_left_out() -> None:
    assert Names("a").job_name("%p-%c-%i") == "a"
    assert Names("a", "docker.io/library/b:1.2").job_name("%c-%i") == "a-b-1.2"
    assert Names("a").job_name("of the site") == "of_the_site"


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A storage as podman 4.3 and 5.4 write it; the bundle in it."""
    metadata = json.dumps({"image-name": "localhost/busybox:latest", "name": "web"})
    others = [{"id": f"{number:064x}", "names": ["x"], "metadata": "{}"} for number in range(3)]
    entry = {"id": ID, "names": ["web"], "image": "c" * 64, "metadata": metadata}
    files = {
        "overlay-containers/containers.json": [*others, entry],
        "overlay-images/images.json": [{"id": "c" * 64, "digest": DIGEST}],
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(json.dumps(content, separators=(",", ":")))
    return tmp_path / "overlay-containers" / ID / "userdata"


def test_podmans_storage(stored: Path) -> None:
    told = {"org.opencontainers.image.ref.name": "other", "org.scrun.image.digest": DIGEST[:-1]}
    assert found(told, path=str(stored)) == Names("web", "localhost/busybox:latest", DIGEST)
    (stored.parents[1] / "containers.json").rename(stored.parents[1] / "volatile-containers.json")
    assert found({}, path=str(stored)).image == "localhost/busybox:latest"


@pytest.mark.parametrize("content", ["", "[", "{}", '[{"id":"%s"', '[{"id":"%s","names":7}]'])
def test_a_storage_that_is_none(stored: Path, content: str) -> None:
    (stored.parents[1] / "containers.json").write_text(content.replace("%s", ID))
    assert found({"org.opencontainers.image.ref.name": "i"}, path=str(stored)).image == "i"


@pytest.fixture
def of_docker(tmp_path: Path) -> Path:
    """What dockerd 20.10 and 28 write of a container; its directory."""
    place = tmp_path / "containers" / ID
    place.mkdir(parents=True)
    image = "sha256:" + "c" * 64
    config = {"Image": "busybox:1", "Env": ["PASSWORD=hunter2"], "Labels": None}
    known = {"Name": "/web", "Image": image, "Driver": "overlay2", "Config": config, "ID": ID}
    (place / "config.v2.json").write_text(json.dumps(known))
    names = {"busybox@sha256:" + "b" * 64: "other", "busybox:1": image, "busybox@" + DIGEST: image}
    (tmp_path / "image" / "overlay2").mkdir(parents=True)
    (tmp_path / "image" / "overlay2" / "repositories.json").write_text(
        json.dumps({"Repositories": {"other": {}, "busybox": names}})
    )
    return place


def test_docker(of_docker: Path, tmp_path: Path) -> None:
    mounts = ["tmpfs", str(of_docker / "hostname")]
    assert found({}, mounts=mounts) == Names("web", "busybox:1", DIGEST)
    assert found({}, "6" * 64, mounts=mounts) == Names()
    (tmp_path / "image" / "overlay2" / "repositories.json").unlink()
    told = {"org.opencontainers.image.ref.name": "other"}
    assert found(told, mounts=mounts) == Names("web", "busybox:1", "sha256:" + "c" * 64)


@pytest.mark.parametrize("content", ["", "[", "{}", '{"Config":[]}', '{"Config":{"Image":7}}'])
def test_docker_says_nothing(of_docker: Path, content: str) -> None:
    (of_docker / "config.v2.json").write_text(content)
    told = {"org.opencontainers.image.ref.name": "i"}
    assert found(told, mounts=[str(of_docker / "hostname")]) == Names(image="i")


def test_an_infra_container_is_called_as_its_pod() -> None:
    told = {"org.scrun.name": "0123456789ab-infra"}
    assert found(told, hostname="shop") == Names("shop", pod="shop")
    assert found(told) == Names("0123456789ab-infra")


PLAIN = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def check_plain(text: str, pattern: str) -> None:
    """Nothing but plain words, and few of them, reach a command line."""
    keys = ("org.scrun.name", "org.opencontainers.image.ref.name", "org.scrun.pod_name")
    names = found(dict.fromkeys((*keys, "org.scrun.image.digest"), text))
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", names.job_name(pattern))
    word = r"[A-Za-z0-9/:@+][A-Za-z0-9_.:/@+-]*"
    assert re.fullmatch(f"( (image|name|pod)={word})*", names.comment)
    assert len(names.comment) < 800


@pytest.mark.covers("security annotations that name the container, its image or its pod")
@given(PLAIN, st.sampled_from(["%c", "%c-%i", "-%p"]))
def test_an_image_says_what_it_wants(text: str, pattern: str) -> None:
    check_plain(text, pattern)


@pytest.mark.parametrize(
    "text", ["a\nJOBID=1", "--uid=0", '"; rm -rf /', "é" * 99, "x" * 250_000, "%c", "-_.", "@" * 9]
)
def test_words_that_would_harm(text: str) -> None:
    check_plain(text, "%c-%i-%p")
