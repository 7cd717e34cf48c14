"""The limits of whoever happens to start a supervisor are not those of all containers."""

from pathlib import Path

from tests.conftest import MakeSite


def test_limits_of_the_first_call(make_site: MakeSite) -> None:
    """With `ulimit -St 1` SIGXCPU ended all containers when the supervisor had used a second."""
    site = make_site("local-user")
    usual = site.command
    site.command = ["prlimit", "--cpu=7:", "--fsize=536870912:", "--", *usual]
    first = site.shell("ulimit -St; ulimit -Sf").created()
    [supervisor] = site.supervisors()
    limits = Path(f"/proc/{supervisor}/limits").read_text().splitlines()
    for name in ("Max cpu time", "Max file size"):
        soft, hard = next(line for line in limits if line.startswith(name)).split()[3:5]
        assert soft == hard == "unlimited"
    first.start()
    assert first.wait() == 0
    assert first.output().split() == ["7", "1048576"]
    site.command = usual
    second = site.shell("ulimit -St; ulimit -Sf").created().start()
    assert second.wait() == 0
    assert second.output().split() == ["unlimited", "unlimited"]
    assert site.supervisors() == [supervisor]
    for life in (first, second):
        life.delete()
