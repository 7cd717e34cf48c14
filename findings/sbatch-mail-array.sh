#!/usr/bin/env bash
# `sbatch --mail-type=END,FAIL --array=1-3`, and one of the three fails, in the first minutes of a day's work.
#
# One would guess: a mail for each element as it ends, and one at once for the failure.
# What happens: one mail for all, when the last has ended, or been cancelled: "Mixed, ExitCode [0-3]". Which one failed
# is not in it. With ARRAY_TASKS among the types there is one for each. A cancelled job is not a failure: with
# --mail-type=FAIL alone there is no mail for a waiting one; END tells of it as "CANCELLED, ExitCode 0".
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   three elements, one exit 3:   1 mail     with ARRAY_TASKS: 3 mails
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
printf '#!/bin/sh\necho "$2" >>%s\n' "$place/mails" >mail
chmod +x mail
slurm "MailProg=$place/mail" 2>repeated
wait_for() { # NUMBER: of mails; a moment more, in which there might be others
	local try
	for ((try = 0; try < 100; try++)); do
		[[ $(grep -c . mails) -lt $1 ]] || break
		sleep 0.1
	done
	sleep 1
}
mails() { # NUMBER OPTION…: the mails of an array
	: >mails
	sbatch -Q --wait --output=/dev/null --mail-user=who --array=1-3 "${@:2}" \
		--wrap 'exit $((SLURM_ARRAY_TASK_ID == 2 ? 3 : 0))' || true
	wait_for "$1"
	grep -oE '(Ended|Failed).*' mails | sed 's/Run time [^,]*, //' | sort | paste -sd ';'
}
expect "END,FAIL" "Failed, Mixed, ExitCode [0-3]" "$(mails 1 --mail-type=END,FAIL)"
expect "with ARRAY_TASKS" "Ended, COMPLETED, ExitCode 0;Ended, COMPLETED, ExitCode 0;Failed, FAILED, ExitCode 3" \
	"$(mails 3 --mail-type=END,FAIL,ARRAY_TASKS)"
cancelled() { # TYPE
	: >mails
	sbatch -Q --hold --output=/dev/null --mail-user=who --mail-type="$1" --job-name=held --wrap true
	scancel --name=held
	wait_for 1
	grep -oE 'Ended.*' mails | sed 's/Run time [^,]*, //' || true
}
expect "cancelled, END" "Ended, CANCELLED, ExitCode 0" "$(cancelled END)"
expect "cancelled, FAIL" "" "$(cancelled FAIL)"
