/* The anchor: the process that `create` leaves behind for an engine to watch, and this process in
 * the foreground. What it is for, and why it has namespaces of its own: scrun/anchor/shell.py. */
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <linux/sockios.h>
#include <time.h>
#include <unistd.h>

#define EMPTY "/proc" /* where its root is mounted first: a directory that every host has */
#define AGAIN 1.0     /* seconds that a signal has to be taken before the next one */
#define UNTAKEN 10    /* and without one */

static const struct {
	int number;
	const char *line;
} PASSED_ON[] = {
	{SIGHUP, "HUP\n"},   {SIGINT, "INT\n"},   {SIGQUIT, "QUIT\n"}, {SIGUSR1, "USR1\n"},
	{SIGUSR2, "USR2\n"}, {SIGALRM, "ALRM\n"}, {SIGTERM, "TERM\n"}, {SIGWINCH, "WINCH\n"},
};
#define KINDS (sizeof PASSED_ON / sizeof *PASSED_ON)

static int line = 3;               /* the socket that leads to the supervisor */
static const struct call *on_behalf; /* in the foreground */
static volatile sig_atomic_t first, has_no_reader;
static double sent_at;

static double seconds(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* End this command where nobody takes a signal that ends programs: as scrun/anchor/foreground.py. */
static void end_unless_taken(int number)
{
	int unread = 0;
	if (has_no_reader || (!ioctl(line, SIOCOUTQ, &unread) && unread)) {
		sigset_t none;
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		step_aside(on_behalf, "untaken=", number);
	}
	first = 0;
}

static void pass_on(int number)
{
	int saved = errno;
	double now = on_behalf ? seconds() : 0;
	bool ends = number == SIGHUP || number == SIGINT || number == SIGQUIT || number == SIGTERM;
	if (on_behalf && number == SIGALRM && first && now >= sent_at + UNTAKEN) {
		end_unless_taken(first);
		errno = saved;
		return;
	}
	if (on_behalf && ends && first && now - sent_at >= AGAIN)
		end_unless_taken(number);
	for (size_t at = 0; at < KINDS; at++)
		if (PASSED_ON[at].number == number &&
		    send(line, PASSED_ON[at].line, strlen(PASSED_ON[at].line), MSG_NOSIGNAL) < 0)
			has_no_reader = 1;
	if (on_behalf && ends && !first) {
		struct itimerval timer = {.it_value.tv_sec = UNTAKEN};
		first = number;
		sent_at = now;
		setitimer(ITIMER_REAL, &timer, NULL);
	}
	errno = saved;
}

/* Forward signals from now on. */
void pass_signals_on(int sock, const struct call *call)
{
	struct sigaction action = {.sa_handler = pass_on};
	line = sock;
	on_behalf = call;
	sigfillset(&action.sa_mask);
	for (size_t at = 0; at < KINDS; at++)
		sigaction(PASSED_ON[at].number, &action, NULL);
}

/* Exit with the status that the supervisor sends; -1: this is an anchor that was left behind. */
void stay(int sock)
{
	char told[8];
	size_t size = 0;
	if (sock < 0) {
		prctl(PR_SET_NAME, "scrun-anchor"); /* executed by a descriptor, it would be a number */
		pass_signals_on(3, NULL);
		close(4); /* tells that this program is loaded */
		sock = 3;
	}
	while (size < sizeof told && (!size || told[size - 1] != '\n')) {
		ssize_t part = recv(sock, told + size, sizeof told - size, 0);
		if (part < 0 && errno == EINTR)
			continue;
		if (part <= 0) /* the supervisor died */
			break;
		size += (size_t)part;
	}
	bool is_status = size > 1 && size <= 4 && told[size - 1] == '\n' &&
	                 strspn(told, "0123456789") == size - 1;
	if (!is_status && on_behalf)
		step_aside(on_behalf, "gone", -1);
	_exit(is_status ? atoi(told) : LOST);
}

static bool put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	close(fd);
	return done;
}

/* Move to new namespaces, and mount an empty root beside the current one. */
static bool go_apart(bool *unprivileged)
{
	int kinds = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET |
	            CLONE_NEWCGROUP;
	unsigned long safe = MS_NOSUID | MS_NODEV | MS_NOEXEC;
	char uids[64], gids[64];
	snprintf(uids, sizeof uids, "%u %u 1", geteuid(), geteuid());
	snprintf(gids, sizeof gids, "%u %u 1", getegid(), getegid());
	if (unshare(kinds)) {
		*unprivileged = errno == EPERM;
		if (!*unprivileged || unshare(kinds | CLONE_NEWUSER) || !put("/proc/self/setgroups", "deny") ||
		    !put("/proc/self/uid_map", uids) || !put("/proc/self/gid_map", gids))
			return false;
	}
	return !mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
	       !mount("scrun", EMPTY, "tmpfs", safe, "mode=755") && !mkdir(EMPTY "/proc", 0777) &&
	       !mount(NULL, EMPTY, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | safe, NULL);
}

/* Become the anchor's program: this one, afresh, with the container's id in its name. */
static _Noreturn void become(const char *id, const int *fds, bool apart)
{
	char name[sizeof ANCHOR + LONGEST_ID];
	char *argv[] = {name,
	                ": stands here for a container on the cluster, whose processes 'exec ID ps' shows",
	                NULL};
	char *environment[] = {NULL};
	sigset_t none;
	snprintf(name, sizeof name, ANCHOR "%s", id);
	if (apart) /* fails in a container that hides parts of /proc */
		(void)mount("proc", EMPTY "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	setsid();
	int program = fds[6];
	if (!chdir("/")) { /* another directory would lead to the host, and keep it mounted */
		for (int number = 0; number < 5; number++)
			dup2(fds[number], number);
		if (fds[5] >= 0)
			dup2(fds[5], 9);
		/* the reader of an inherited pipe would have to wait until the container's end */
		for (int number = 5; number < program; number++)
			if (number != 9 || fds[5] < 0)
				close(number);
		if (syscall(SYS_close_range, program + 1, ~0U, 0))
			for (int number = program + 1; number < 65536; number++)
				close(number);
		for (size_t at = 0; at < KINDS; at++)
			signal(PASSED_ON[at].number, SIG_DFL);
		signal(SIGPIPE, SIG_DFL);
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		fexecve(program, argv, environment);
	}
	(void)!write(4, "x", 1);
	_exit(LOST);
}

/* Make the anchor, tell its pid, and remove the host's root from its reach. */
static _Noreturn void make(const char *id, int sock, int lock, int telling, bool apart)
{
	int loaded[2], fds[7], null = open("/dev/null", O_RDWR | O_CLOEXEC);
	int self = open("/proc/self/exe", O_PATH | O_CLOEXEC); /* before another /proc is there */
	bool unprivileged = false;
	char told[16], why;
	siginfo_t ended = {0};
	if (null < 0 || self < 0 || pipe2(loaded, O_CLOEXEC) || (apart && !go_apart(&unprivileged))) {
		(void)!write(telling, unprivileged ? "u" : "f", 1);
		_exit(1);
	}
	const int from[7] = {null, null, null, sock, loaded[1], lock, self};
	bool has_all = true;
	for (int at = 0; at < 7; at++) { /* out of the way of the numbers that they get */
		fds[at] = from[at] < 0 ? -1 : fcntl(from[at], F_DUPFD_CLOEXEC, 64);
		has_all = has_all && (fds[at] >= 0 || from[at] < 0);
	}
	close(loaded[1]);
	pid_t anchor = has_all ? fork() : -1;
	if (!anchor)
		become(id, fds, apart);
	close(fds[4]);
	int size = snprintf(told, sizeof told, "%d\n", (int)anchor);
	bool done = anchor > 0 && write(telling, told, (size_t)size) == size;
	ssize_t part;
	while ((part = read(loaded[0], &why, 1)) < 0 && errno == EINTR)
		;
	/* it may have been told its status already: that of a program of `exec` */
	if (done && !part && !waitid(P_PID, (id_t)anchor, &ended, WEXITED | WNOHANG | WNOWAIT) &&
	    (!ended.si_pid || ended.si_code == CLD_EXITED) &&
	    (!apart || (!chdir(EMPTY) && !syscall(SYS_pivot_root, ".", ".") && !umount2(".", MNT_DETACH)))) {
		(void)!write(telling, "0\n", 2);
		_exit(0);
	}
	if (anchor > 0)
		kill(anchor, SIGKILL); /* still an unreaped child, so the pid is valid */
	_exit(1);
}

/* Read a line; false if there is none. */
static bool next_line(int fd, char *into, size_t room)
{
	memset(into, 0, room);
	for (size_t size = 0; size < room - 1; size++) {
		ssize_t part;
		while ((part = read(fd, into + size, 1)) < 0 && errno == EINTR)
			;
		if (part <= 0)
			return false;
		if (into[size] == '\n') {
			into[size] = 0;
			return size > 0;
		}
	}
	return false;
}

void reap(struct anchor *anchor)
{
	if (!anchor->maker)
		return;
	close(anchor->told);
	while (waitpid(anchor->maker, NULL, 0) < 0 && errno == EINTR)
		;
	anchor->maker = 0;
}

/* Make an anchor, a grandchild, with this end of its socket and the descriptor of a lock, or -1.
 * An ordinary user on a host without user namespaces gets one in the caller's namespaces. */
bool leave_anchor(struct anchor *anchor, const char *id, int sock, int lock)
{
	for (int apart = 1; apart >= 0; apart--) {
		int told[2];
		char text[16] = "";
		if (pipe2(told, O_CLOEXEC) || (anchor->maker = fork()) < 0)
			return false;
		if (!anchor->maker)
			make(id, sock, lock, told[1], apart);
		close(told[1]);
		anchor->told = told[0];
		if (next_line(told[0], text, sizeof text)) {
			anchor->pid = atoi(text);
			return true;
		}
		reap(anchor);
		if (text[0] != 'u')
			return false;
	}
	return false;
}

/* Wait until the host's root is out of its reach; false if it has died. */
bool settle(struct anchor *anchor)
{
	char text[16];
	bool fine = next_line(anchor->told, text, sizeof text) && !strcmp(text, "0");
	reap(anchor);
	return fine;
}
