"""Images for several nodes: sent once, and passed on among them, whatever breaks."""

import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from scrun.core.errors import EngineError
from scrun.supervisor.children.processes import ChildEnv, child
from scrun.supervisor.contracts.target import ImageFile
from scrun.supervisor.nodes.beginning import Direct, Rank, begun
from scrun.supervisor.nodes.code import boot_command, variables
from scrun.supervisor.nodes.connection import connected
from scrun.supervisor.nodes.spreading import Spreading
from tests.harness import users
from tests.harness.peer import Said
from tests.harness.processes import descendants
from tests.harness.strangers import KINDS, at_every_port
from tests.harness.wait import wait_until

pytestmark = pytest.mark.usefixtures("no_descriptor_stays")
SIZE = 5 << 20
STRANGERS, IMAGES = (400, 200) if os.environ.get("SCRUN_NIGHTLY") else (40, 3)
CONTENT = random.Random(2).randbytes(SIZE)


@pytest.fixture
def image(tmp_path: Path) -> ImageFile:
    file = tmp_path / "image.sqfs"
    file.write_bytes(CONTENT)
    return ImageFile(str(file), "image", SIZE)


class Cluster:
    """Nodes with a disk each.

    Attributes:
        pids: The pids of the last shim on each.
        sent: How many bytes had been sent, each time it was told.
    """

    def __init__(self, base: Path) -> None:
        self._base = base
        self.pids: dict[str, int] = {}
        self.sent: list[int] = []

    @asynccontextmanager
    async def _node(self, name: str) -> AsyncIterator[Rank]:
        (self._base / name).mkdir(exist_ok=True)
        stdin, to_shim = os.pipe()
        from_shim, stdout = os.pipe()
        more = {"TMPDIR": str(self._base / name), **variables()}
        env = ChildEnv({"PATH": users.PATH, **more})
        async with (
            child(boot_command(), env, stdin=stdin, stdout=stdout, stderr=2),
            connected(to_shim, from_shim, Said().journal) as shim,
        ):
            os.close(stdin)
            os.close(stdout)
            hello = await begun(shim, Direct(True, None), Said().journal, "", "")
            self.pids[name] = hello.pid
            assert shim.is_direct
            yield Rank(shim, msgspec.structs.replace(hello, node=name), 0)

    @asynccontextmanager
    async def nodes(self, *names: str) -> AsyncIterator[list[Rank]]:
        """Shims on these nodes; there may be several on one."""
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(self._node(name)) for name in names]

    def say(self, count: int, total: int) -> None:
        assert count <= total
        self.sent.append(count)

    def there(self) -> dict[str, bytes]:
        """What is on the nodes' disks."""
        found = self._base.glob("*/scrun-images-*/*")
        return {f"{path.parents[1].name}/{path.name}": path.read_bytes() for path in found}


def content(path: str) -> bytes:
    return Path(path).read_bytes()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.mark.parametrize("count", [1, 2, 7])
async def test_all_get_it(count: int, cluster: Cluster, image: ImageFile) -> None:
    names = [f"n{number}" for number in range(count)]
    async with cluster.nodes(*names, "n0") as shims:
        spreading = Spreading(shims)
        with trio.fail_after(60):
            found = await spreading.send([image], 0, cluster.say)
        for name, [path] in zip([*names, "n0"], found, strict=True):
            assert f"/{name}/" in path
            assert content(path) == CONTENT
        # the end of the file is told, too
        assert cluster.sent.count(SIZE) in (1, 2)
        await spreading.leave()
        again = await Spreading(shims).send([image], 0, cluster.say)
        assert again == found
    assert cluster.there() == {f"{name}/image": CONTENT for name in names}


@pytest.mark.covers("security connect to the port at which an image is passed on")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
async def test_strangers_at_the_ports_of_nodes(
    kind: str, cluster: Cluster, image: ImageFile, tmp_path: Path
) -> None:
    """Each node gets each image, and none of them twice from the submit host."""
    names = list("abcd")
    with at_every_port(kind, STRANGERS, lambda: sorted(descendants(os.getpid()))):
        async with cluster.nodes(*names) as shims:
            for number in range(IMAGES):
                sent = ImageFile(image.file, f"image{number}", SIZE)
                spreading, cluster.sent = Spreading(shims), []
                with trio.fail_after(60):
                    found = await spreading.send([sent], 0, cluster.say)
                await spreading.leave()
                assert [content(path) for [path] in found] == [CONTENT] * len(names)
                assert cluster.sent.count(SIZE) in (1, 2)
                for [path] in found:
                    os.unlink(path)


async def test_nodes_that_have_one_disk(cluster: Cluster, image: ImageFile) -> None:
    """It comes there once; who waits for that keeps nobody else waiting."""
    async with cluster.nodes("a", "a", "b", "a", "b", "c") as shims:
        with trio.fail_after(60):
            found = await Spreading(shims).send([image], 0, cluster.say)
        assert [Path(path).parents[1].name for [path] in found] == list("aababc")
    assert cluster.sent.count(SIZE) in (1, 2)
    assert cluster.there() == {f"{name}/image": CONTENT for name in "abc"}


async def test_a_node_where_it_comes_for_another_container(
    cluster: Cluster, image: ImageFile
) -> None:
    """The other nodes do not wait for that: it may wait for one of them."""
    async with cluster.nodes("b") as [other], cluster.nodes("a", "b", "c") as shims:
        words = {"name": image.name, "size": image.size, "limit": 0}
        assert not (await other.shim.call("fetch", id="1", **words))["comes"]
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(Spreading(shims).send, [image], 0, cluster.say)
                expected = {"a/image", "b/image.part", "c/image"}
                await trio.to_thread.run_sync(
                    wait_until, "they have it", lambda: set(cluster.there()) == expected
                )
                await other.shim.call("leave", id="1")
    assert cluster.there() == {f"{name}/image": CONTENT for name in "abc"}


async def test_one_that_has_it_passes_it_on(cluster: Cluster, image: ImageFile) -> None:
    async with cluster.nodes("a", "b", "c") as shims:
        await Spreading(shims[1:2]).send([image], 0, cluster.say)
        cluster.sent.clear()
        await Spreading(shims).send([image], 0, cluster.say)
        assert not cluster.sent
    assert len(cluster.there()) == 3


async def test_several_images(cluster: Cluster, image: ImageFile, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"other")
    other = ImageFile(str(tmp_path / "other"), "other", 5)
    async with cluster.nodes("a", "b") as shims:
        found = await Spreading(shims).send([image, other], 0, cluster.say)
        assert [[Path(path).name for path in paths] for paths in found] == [["image", "other"]] * 2
        assert cluster.sent[-1] == SIZE + 5


async def test_a_node_without_room(cluster: Cluster, image: ImageFile) -> None:
    async with cluster.nodes("a", "b", "c") as shims:
        spreading = Spreading(shims)
        with pytest.raises(EngineError, match="no room for 5 MiB on the node"):
            await spreading.send([image], 1 << 20, cluster.say)
        await spreading.leave()
    assert not cluster.there()


async def test_a_node_whose_courier_is_killed(cluster: Cluster, image: ImageFile) -> None:
    """Those that it serves get the image from us."""
    killed: list[int] = []

    def say(count: int, total: int) -> None:
        cluster.say(count, total)
        if not killed:
            killed.extend(descendants(cluster.pids["b"]))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    async with cluster.nodes("a", "b", "c", "d", "e") as shims:
        with trio.fail_after(60):
            found = await Spreading(shims).send([image], 0, say)
        assert killed
        assert all(content(path) == CONTENT for [path] in found)


async def test_a_node_that_goes_away(cluster: Cluster, image: ImageFile) -> None:
    """The container cannot be, and says so; the others have nothing of it."""

    def say(count: int, total: int) -> None:
        if count < total:
            os.kill(cluster.pids["b"], signal.SIGKILL)

    async with cluster.nodes("a", "b", "c") as shims:
        spreading = Spreading(shims)
        with trio.fail_after(60), pytest.raises(EngineError, match="the shim has gone"):
            await spreading.send([image], 0, say)
        await spreading.leave()
    assert set(cluster.there()) <= {"a/image", "b/image.part"}


async def test_it_is_cancelled(cluster: Cluster, image: ImageFile) -> None:
    """As when the job ends meanwhile."""
    scope = trio.CancelScope()
    async with cluster.nodes("a", "b", "c") as shims:
        spreading = Spreading(shims)
        with scope:
            await spreading.send([image], 0, lambda count, total: scope.cancel())
        assert scope.cancelled_caught
        await spreading.leave()
        assert not cluster.there()
        await Spreading(shims).send([image], 0, cluster.say)


async def test_the_file_is_not_what_it_was(cluster: Cluster, image: ImageFile) -> None:
    os.truncate(image.file, SIZE // 2)
    async with cluster.nodes("a", "b") as shims:
        spreading = Spreading(shims)
        with pytest.raises(EngineError, match="bytes arrived"):
            await spreading.send([image], 0, cluster.say)
        os.unlink(image.file)
        with pytest.raises(EngineError, match="No such file"):
            await Spreading(shims[:1]).send(
                [ImageFile(image.file, "another", SIZE)], 0, cluster.say
            )
        await spreading.leave()
