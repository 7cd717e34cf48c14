"""Jobs of pools are claimed on disk: nobody takes them for jobs of dead supervisors."""

import os
from pathlib import Path

from scrun.supervisor.containers.claims import Claim, is_claimed, is_on_its_way
from scrun.supervisor.containers.records import remove_of_the_dead
from tests.harness.claims import claim_of_the_dead


def test_a_job_is_claimed_until_the_end(tmp_path: Path) -> None:
    claim = Claim(str(tmp_path), "fast")
    claim.note("42")
    assert is_claimed(str(tmp_path), "42")
    assert not is_claimed(str(tmp_path), "4")
    claim.end()
    assert not is_claimed(str(tmp_path), "42")
    assert os.listdir(tmp_path) == []


def test_whoever_has_the_descriptor_claims_it(tmp_path: Path) -> None:
    """As a keeper does."""
    first = Claim(str(tmp_path), "fast")
    first.note("42")
    kept = os.dup(first.fd)
    os.close(first.fd)
    assert is_claimed(str(tmp_path), "42")
    second = Claim(str(tmp_path), "fast", first.name, kept)
    remove_of_the_dead(str(tmp_path), "@other")
    assert is_claimed(str(tmp_path), "42")
    second.end()


def test_a_claim_of_the_dead_counts_no_more(tmp_path: Path) -> None:
    claim = Claim(str(tmp_path), "fast")
    claim.note("42")
    os.close(claim.fd)
    assert not is_claimed(str(tmp_path), "42")
    remove_of_the_dead(str(tmp_path), "@other")
    assert os.listdir(tmp_path) == []


def test_other_files_there_claim_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "@pool-fifo.lock")
    (tmp_path / "@pool-dir.lock").mkdir()
    (tmp_path / "@pool-link.lock").symlink_to("nowhere")
    (tmp_path / "42").write_text("42")
    assert not is_claimed(str(tmp_path), "42")


def test_a_pool_of_a_dead_supervisor_is_on_its_way(tmp_path: Path) -> None:
    """As long as a keeper has its claim, and until it is ours."""
    root = str(tmp_path)
    mine = Claim(root, "mine")
    assert not is_on_its_way(root, "mine", ())
    name, kept = claim_of_the_dead(tmp_path, "fast")
    assert is_on_its_way(root, "fast", ())
    assert not is_on_its_way(root, "fas", ())
    assert not is_on_its_way(root, "fast", {name})
    os.close(kept)
    assert not is_on_its_way(root, "fast", ())
    mine.end()
