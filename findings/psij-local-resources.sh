#!/usr/bin/env bash
# PSI/J, one interface in Python to Slurm, PBS, LSF and others, is tried with its executor "local":
# ResourceSpecV1(process_count=3) and JobAttributes(duration=timedelta(seconds=1)).
#
# One would guess: three processes, and the job is ended after a second, so that what works here works on the cluster;
# or an error, if "local" cannot do it.
# What happens: one process, and it runs as long as it likes, and the state is COMPLETED. The time is passed over, and
# how many processes start is for a launcher to say: the usual one is "single"; launcher="multiple" starts three.
# Seen with psij-python 0.9.11.
#
#   process_count=3: 1 process, COMPLETED      launcher="multiple": 3      sleep 3 with a duration of 1 s: COMPLETED
. "$(dirname "$0")/common.bash" || exit 2
pips psij-python==0.9.11
cat >program.py <<'END'
from datetime import timedelta
from pathlib import Path

from psij import Job, JobAttributes, JobExecutor, JobSpec, ResourceSpecV1

executor = JobExecutor.get_instance("local")


def run(command: str, **others: object) -> str:
    job = Job(JobSpec(executable="/bin/sh", arguments=["-c", command], **others))
    executor.submit(job)
    return str(job.wait().state)


lines = Path("lines").resolve()
for launcher in None, "multiple":
    lines.write_text("")
    state = run(f"echo line >>{lines}", resources=ResourceSpecV1(process_count=3), launcher=launcher)
    print(len(lines.read_text().splitlines()), state)
print(run("sleep 3", attributes=JobAttributes(duration=timedelta(seconds=1))))
END
HOME=$place python program.py >out 2>words || cannot "$(tail -n 1 words)"
expect "process_count=3" "1 COMPLETED" "$(sed -n 1p out)"
expect "launcher multiple" "3 COMPLETED" "$(sed -n 2p out)"
expect "duration" "COMPLETED" "$(sed -n 3p out)"
