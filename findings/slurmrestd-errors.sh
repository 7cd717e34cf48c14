#!/usr/bin/env bash
# slurmrestd is asked to take a job that is to be held ("hold": true), or that needs more than the nodes have now; and
# to show a job that does not exist.
#
# One would guess: "errors" of an answer is empty when the job was taken, so who finds something there may submit it
# again; and a job that does not exist is 404.
# What happens: the job is taken, status 200 and a number, and "errors" says why it does not run yet. Who submits
# again has two. The job that does not exist is 500 INTERNAL ERROR, which clients and proxies try again.
# Seen with slurmrestd 22.05.8 of Debian 12, its interface v0.0.38. Needs root.
#
#   a job: 200, job_id, no errors            "hold": true: 200, job_id, Job is in held state, pending scheduler release
#   "tasks": 99: 200, job_id, Requested partition configuration not available now       GET job/99999: 500
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
debs slurmrestd=22.05.8-4+deb12u3 libhttp-parser2.9=2.9.4-5 libjwt0=1.10.2-1+deb12u1 libjansson4=2.14-2
export LD_LIBRARY_PATH=${SLURM_CONF%/etc/*}/root/usr/lib/$(uname -m)-linux-gnu/slurm-wlm:$LD_LIBRARY_PATH
ask() { # METHOD PATH BODY: the status, whether a job has a number, and the errors
	printf '%s /slurm/v0.0.38/%s HTTP/1.1\r\n' "$1" "$2" >request
	printf '%s\r\n' "Host: localhost" "Content-Type: application/json" "Accept: application/json" \
		"Content-Length: ${#3}" "Connection: close" "" >>request
	printf %s "$3" >>request
	# rest_auth/local takes a pipe for a request of its own user's, but not a file.
	cat request | SLURMRESTD_SECURITY=disable_user_check slurmrestd -a rest_auth/local -s openapi/v0.0.38 \
		>answer 2>words || true
	sed -n -e '1s/.* \([0-9]*\) .*/\1/p' -e 's/.*"\(job_id\)".*/\1/p' -e 's/.*"error": "\(.*\)".*/\1/p' answer | paste -sd,
}
submit() { # OPTION
	ask POST job/submit '{"script": "#!/bin/sh\ntrue\n", "job": {"name": "job", "environment": {"PATH": "/bin"},
		"current_working_directory": "/tmp", "standard_output": "/dev/null"'"$1"'}}'
}
expect "a job" 200,job_id "$(submit '')"
until [[ -z $(squeue -h) ]]; do sleep 0.1; done
expect '"hold": true' "200,Job is in held state, pending scheduler release,job_id" "$(submit ', "hold": true')"
expect '"tasks": 99' "200,Requested partition configuration not available now,job_id" "$(submit ', "tasks": 99')"
expect "jobs that wait" 2 "$(squeue -h --states=PENDING | wc -l)"
expect "job 99999" "500,Invalid job id specified" "$(ask GET job/99999 '')"
