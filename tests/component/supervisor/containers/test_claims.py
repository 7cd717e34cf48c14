"""Jobs of pools are claimed on disk: nobody takes them for jobs of dead supervisors."""

import os
from pathlib import Path

from scrun.supervisor.containers.claims import Claim, is_claimed
from scrun.supervisor.containers.records import remove_of_the_dead


def test_a_job_is_claimed_until_the_end(tmp_path: Path) -> None:
    claim = Claim(str(tmp_path))
    claim.note("42")
    assert is_claimed(str(tmp_path), "42")
    assert not is_claimed(str(tmp_path), "4")
    claim.end()
    assert not is_claimed(str(tmp_path), "42")
    assert os.listdir(tmp_path) == []


def test_whoever_has_the_descriptor_claims_it(tmp_path: Path) -> None:
    """As a keeper does."""
    first = Claim(str(tmp_path))
    first.note("42")
    kept = os.dup(first.fd)
    os.close(first.fd)
    assert is_claimed(str(tmp_path), "42")
    second = Claim(str(tmp_path), first.name, kept)
    remove_of_the_dead(str(tmp_path), "@other")
    assert is_claimed(str(tmp_path), "42")
    second.end()


def test_a_claim_of_the_dead_counts_no_more(tmp_path: Path) -> None:
    claim = Claim(str(tmp_path))
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
