"""As many variables and annotations as config.json may have, and more."""

import time

import pytest

from scrun.oci.config import MOST_VARIABLES
from tests.conftest import MakeSite


@pytest.mark.parametrize("place", ["local-user", "slurm-user"])
def test_as_many_variables_as_are_possible(make_site: MakeSite, place: str) -> None:
    """Slurm takes them without delay; nine times as many, and it took 20 s to refuse."""
    site = make_site(place)
    config = site.config("sh", "-c", "exit $A9000")
    config["process"]["env"] += [f"A{number}=7" for number in range(MOST_VARIABLES - 100)]
    config["annotations"] = {f"a{number}": "x" for number in range(MOST_VARIABLES)}
    began = time.monotonic()
    life = site.life(config=config).created().start()
    assert life.wait() == 7
    assert time.monotonic() - began < 20
    life.delete()


@pytest.mark.parametrize("place", ["local-user", "slurm-user"])
def test_more_are_refused_at_once(make_site: MakeSite, place: str) -> None:
    site = make_site(place)
    config = site.config("true")
    config["process"]["env"] = [f"A{number}=7" for number in range(90_000)]
    began = time.monotonic()
    said = site.fails("create", "--bundle", str(site.bundle(config)), "many")
    assert f"process.env: has 90000 variables, at most {MOST_VARIABLES} are possible" in said
    assert time.monotonic() - began < 10
