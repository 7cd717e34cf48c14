/* The parent of a container, as conmon and containerd's shim are.
 *
 *     subreaper REPORT CLOSED PID-FILE COMMAND…
 *
 * becomes a subreaper, runs COMMAND (scrun create …) with its own descriptors 0 to 2, waits for the
 * process in the pid file, and tells on the descriptor REPORT, a line each:
 *
 *     create STATUS    how create ended: -N if signal N has killed it
 *     anchor PID       what the pid file says
 *     exit STATUS      how that process ended, as its parent sees it
 *
 * CLOSED names those of the descriptors 0 to 2 that COMMAND gets closed, as in "02", or "-".
 */
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 4096 };

static struct {
	pid_t pid;
	int status;
} ended[MOST];
static int count;

static int wait_for(pid_t pid)
{
	for (int at = 0;; at++) {
		if (at == count) {
			if (count == MOST)
				errx(2, "more children than expected");
			ended[at].pid = wait(&ended[at].status);
			if (ended[at].pid < 0)
				err(2, "wait for %d", pid);
			count++;
		}
		if (ended[at].pid == pid) {
			int status = ended[at].status;
			return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
		}
	}
}

int main(int argc, char **argv)
{
	if (argc < 5)
		errx(2, "usage: subreaper REPORT CLOSED PID-FILE COMMAND…");
	int report = atoi(argv[1]), null, status, anchor;
	if (fcntl(report, F_SETFD, FD_CLOEXEC) || prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
		err(2, "subreaper");
	pid_t create = fork();
	if (create < 0)
		err(2, "fork");
	if (!create) {
		for (const char *fd = argv[2]; *fd; fd++)
			if (*fd != '-')
				close(*fd - '0');
		execvp(argv[4], argv + 4);
		err(127, "%s", argv[4]);
	}
	/* else this process would keep the container's pipes open */
	null = open("/dev/null", O_RDWR);
	for (int fd = 0; fd < 3; fd++)
		dup2(null, fd);
	status = wait_for(create);
	dprintf(report, "create %d\n", status);
	if (status)
		return 0;
	FILE *file = fopen(argv[3], "r");
	if (!file || fscanf(file, "%d", &anchor) != 1)
		return 2;
	fclose(file);
	dprintf(report, "anchor %d\n", anchor);
	dprintf(report, "exit %d\n", wait_for(anchor));
	return 0;
}
