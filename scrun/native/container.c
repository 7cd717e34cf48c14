/* `create` and `exec`: a request with descriptors, and a process for an engine to watch. */
#include "client.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* scrun.protocol.wire: what precedes the reply to `create` */
enum { REASON_SHOWN = 0xfb, CALLED, LIVE, TO_LOG, TO_STDERR };

#define DIGITS 10
#define DIED "cannot make a process for the engine to watch: it was killed"

/* Name the supervisor of all containers of this user here; false if another one may be meant:
 * see `_reach` of scrun/client/submit.py. */
static bool name_supervisor(const struct call *call, char *name, size_t size)
{
	static const char *const KINDS[] = {"user", "mnt", "pid"};
	struct stat found[3];
	char path[64], groups[65536];
	size_t length;
	if (!is_for_all() || getenv("SLURM_JOB_ID") ||
	    !read_file("/proc/self/cgroup", groups, sizeof groups, &length) || strstr(groups, "/job_"))
		return false;
	for (int at = 0; at < 3; at++) {
		snprintf(path, sizeof path, "/proc/self/ns/%s", KINDS[at]);
		if (stat(path, &found[at]))
			return false;
	}
	snprintf(name, size, "@user-%ju-%ju-%ju-%s", (uintmax_t)found[0].st_ino,
	         (uintmax_t)found[1].st_ino, (uintmax_t)found[2].st_ino, VERSION);
	if (!getenv("_OCI_SYNCPIPE")) /* only conmon's containers have pods with own supervisors */
		return true;
	DIR *root = opendir(call->record);
	bool has_pods = !root;
	for (struct dirent *entry; root && (entry = readdir(root));)
		has_pods = has_pods || !strncmp(entry->d_name, "@pod-", 5);
	if (root)
		closedir(root);
	return !has_pods;
}

/* Drop the first part of a reply. */
static void drop(struct reply *reply, size_t size)
{
	memmove(reply->data, reply->data + size, reply->size -= size);
}

/* Run the OCI runtime on behalf of the supervisor (scrun/client/submit.py); false if that is gone. */
static bool run_runtime(int sock, struct reply *reply, int lock, bool *failed)
{
	char *end = memchr(reply->data, 0, reply->size), number[16];
	size_t head = (size_t)(end - reply->data) + 1, length = 0, words = 0;
	for (const char *at = reply->data + 1; at < end && *at >= '0' && *at <= '9'; at++)
		length = head <= DIGITS + 1 ? length * 10 + (size_t)(*at - '0') : 0;
	if (!length || length > LONGEST)
		return false;
	while (reply->size < head + length)
		if (!more(sock, reply))
			return false;
	char *command = malloc(length + 1), **argv = calloc(length + 2, sizeof *argv);
	if (!command || !argv)
		no_memory();
	memcpy(command, reply->data + head, length);
	command[length] = 0;
	for (size_t at = 0; at <= length; at += strlen(command + at) + 1)
		argv[words++] = command + at;
	drop(reply, head + length);
	mode_t mask = umask(077);
	umask(mask & 077); /* it enters directories that it makes */
	pid_t pid;
	int state = 0, error = posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ);
	if (error) {
		snprintf(reply->missing, sizeof reply->missing, "%s", argv[0]);
		reply->error = error;
	}
	while (!error && waitpid(pid, &state, 0) < 0 && errno == EINTR)
		;
	int status = WIFSIGNALED(state) ? -WTERMSIG(state) : WEXITSTATUS(state);
	*failed = status > 0;
	int size = snprintf(number, sizeof number, "%d\n", status);
	free(argv);
	free(command);
	return !error && send_with(sock, number, (size_t)size, &lock, lock >= 0);
}

static void show(const char *text, size_t size)
{
	struct pollfd polled = {.fd = 2, .events = POLLOUT};
	if (poll(&polled, 1, 0) > 0) /* conmon does not read it before we have ended */
		(void)!write(2, text, size < 4096 ? size : 4096);
}

/* Handle what precedes the reply; `kept` is what the Python program has to log. */
static bool read_reply(int sock, struct reply *reply, int lock, struct request *kept, bool *shown)
{
	while (more(sock, reply)) {
		unsigned char kind;
		char *end;
		while (reply->size && (kind = (unsigned char)reply->data[0]) >= REASON_SHOWN &&
		       (end = memchr(reply->data, 0, reply->size))) {
			size_t size = (size_t)(end - reply->data);
			if (kind == CALLED) {
				if (!run_runtime(sock, reply, lock, shown))
					return false;
				continue;
			}
			if (kind == REASON_SHOWN)
				*shown = true;
			else if (kind == TO_STDERR)
				show(reply->data + 1, size - 1);
			else if (kind == TO_LOG)
				add(kept, reply->data, size);
			drop(reply, size + 1);
		}
	}
	return !reply->error && reply->size && (unsigned char)reply->data[0] < REASON_SHOWN;
}

/* The supervisor died. Try again, unless it has left a record; then Python has the words. */
static _Noreturn void lost(const struct call *call, const char *record, bool was_there)
{
	struct stat status;
	if (lstat(record, &status))
		step_aside(call, NULL, -1);
	step_aside(call, was_there ? "lost=old" : "lost=new", -1);
}

static bool begin(struct call *call, struct pid_file *file, int ends[2], struct anchor *anchor)
{
	int lock = call->pid_file ? file->lock : -1;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
		return false;
	if (anchor) {
		bool left = leave_anchor(anchor, call->id, ends[1], lock);
		close(ends[1]);
		if (!left)
			close(ends[0]);
		return left;
	}
	return true;
}

void create(struct call *call)
{
	char name[LONGEST_ID + 1], record[4400], number[32];
	struct stat status;
	struct pid_file file = {.lock = -1, .replaced = -1};
	struct anchor anchor = {0};
	struct request request = {0}, kept = {0};
	struct reply reply = {0};
	int ends[2], sock;
	bool shown = false;
	signal(SIGCHLD, SIG_DFL); /* else nobody could wait for a child's status */
	snprintf(record, sizeof record, "%s/%s", call->record, call->id);
	bool was_there = !lstat(record, &status);
	if (isatty(2) || !name_supervisor(call, name, sizeof name) ||
	    (sock = connect_to(call->record, name)) < 0)
		step_aside(call, NULL, -1);
	add_call(&request, call, getpid());
	if (request.size > LONGEST || (call->pid_file && !make_pid_file(&file, call->pid_file)))
		step_aside(call, NULL, -1);
	if (!begin(call, &file, ends, &anchor) || (call->pid_file && !write_pid(&file, anchor.pid))) {
		discard(&file);
		step_aside(call, NULL, -1);
	}
	const int fds[] = {0, 1, 2, ends[0]};
	int size = snprintf(number, sizeof number, "%d\n", (int)anchor.pid);
	bool answered = send_request(sock, &request, fds, 4) &&
	                send_with(sock, number, (size_t)size, NULL, 0) &&
	                read_reply(sock, &reply, file.lock, &kept, &shown);
	close(ends[0]);
	if (!answered) {
		reap(&anchor);
		discard(&file);
		if (*reply.missing)
			fail(call, "", reply.missing, reply.error);
		lost(call, record, was_there);
	}
	if (!reply.data[0]) {
		bool has_process = reply.size > 1; /* the container's own, and no anchor */
		if (has_process) {
			char *pid = strndup(reply.data + 1, reply.size - 1);
			reap(&anchor);
			if (call->pid_file && !write_pid(&file, pid ? atoi(pid) : 0))
				fail(call, "--pid-file ", call->pid_file, errno);
		} else if (!settle(&anchor)) {
			discard(&file);
			fail(call, DIED, "", 0);
		}
		if (call->pid_file && !publish(&file)) {
			int error = errno;
			discard(&file);
			fail(call, "--pid-file ", call->pid_file, error);
		}
		(void)!send(sock, "", 1, MSG_NOSIGNAL);
		if (!kept.size)
			_exit(0);
	} else {
		reap(&anchor);
		discard(&file);
	}
	/* messages for the log, then the reply, as the supervisor sent them */
	struct request all = {0};
	if (kept.size)
		add(&all, kept.data + 4, kept.size - 4);
	if (shown)
		add(&all, "\xfb", 1);
	add(&all, reply.data, reply.size);
	hand_over(call, all.data + 4, all.size - 4);
}

void execute(struct call *call)
{
	struct pid_file file = {.lock = -1, .replaced = -1};
	struct anchor anchor = {0};
	struct request request = {0};
	int ends[2], sock = connect_to(call->record, "supervisor");
	if (sock < 0 || (call->pid_file && !make_pid_file(&file, call->pid_file)))
		step_aside(call, NULL, -1);
	if (!begin(call, &file, ends, call->detach ? &anchor : NULL)) {
		discard(&file);
		step_aside(call, NULL, -1);
	}
	pid_t pid = call->detach ? anchor.pid : getpid();
	add_call(&request, call, pid);
	if (request.size > LONGEST || (call->pid_file && !write_pid(&file, pid))) {
		close(ends[0]);
		discard(&file);
		step_aside(call, NULL, -1);
	}
	if (!call->detach) /* the program may run before the answer is here */
		pass_signals_on(ends[1], call);
	const int fds[] = {0, 1, 2, ends[0]};
	bool sent = send_request(sock, &request, fds, 4);
	close(ends[0]);
	struct reply reply = receive(sock);
	if (!sent || reply.error == ECONNRESET) {
		reap(&anchor);
		discard(&file);
		/* does it run? its successor knows, and the Python program asks that */
		if (call->detach)
			step_aside(call, "left=", anchor.pid);
		fcntl(ends[1], F_SETFD, 0);
		step_aside(call, "stays=", ends[1]);
	}
	if (reply.error || reply.data[0]) {
		reap(&anchor);
		discard(&file);
		if (reply.error)
			step_aside(call, "failed=", reply.error);
		hand_over(call, reply.data, reply.size);
	}
	if (call->detach && !settle(&anchor)) {
		discard(&file);
		fail(call, DIED, "", 0);
	}
	if (call->pid_file && !publish(&file)) {
		int error = errno;
		discard(&file);
		if (call->detach)
			kill(anchor.pid, SIGKILL); /* which ends the program */
		fail(call, "--pid-file ", call->pid_file, error);
	}
	if (call->detach)
		_exit(0);
	stay(ends[1]);
}
