"""scrun release: give back jobs that wait for their next container (`[slurm] linger`)."""

from scrun.cli.parse import Parsed, record_root
from scrun.client.supervisors import ask_all
from scrun.core.errors import EngineError, StateError
from scrun.core.output import say
from scrun.protocol import wire


def run(parsed: Parsed) -> int:
    job_id = parsed.operands[0] if parsed.operands else ""
    released = b""
    for status, answer in ask_all(record_root(parsed), [b"release", wire.encoded(job_id)]):
        if status:
            raise EngineError(answer.decode(errors="replace"))
        released += answer
    if job_id and not released:
        raise StateError(f"job {job_id} does not wait for a container: see 'scrun list --jobs'")
    say(released)
    return 0
