/* The command line: what an engine calls is read here, as scrun/cli/parse.py reads it. */
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct option {
	const char *name, *letters, *metavar; /* as in scrun.cli.grammar; NULL: a flag */
	bool aside;
};

struct known {
	const char *name;
	const struct option *options;
	int operands; /* the most that there may be */
	bool open_ended;
};

#include "table.h"

static const struct option *named(const struct option *options, const char *name, size_t size)
{
	for (; options->name; options++)
		if (strlen(options->name) == size && !memcmp(options->name, name, size))
			return options;
	return NULL;
}

static bool is_one_of(const char *choices, const char *value)
{
	size_t size = strlen(value);
	for (const char *at = choices; at; at = strchr(at, '|'), at = at ? at + 1 : NULL)
		if (strcspn(at, "|") == size && !memcmp(at, value, size))
			return true;
	return false;
}

static void keep(struct call *call, const char *name, const char *value)
{
	if (!strcmp(name, "root"))
		call->root = value;
	else if (!strcmp(name, "config-file"))
		call->config = value;
	else if (!strcmp(name, "pid-file"))
		call->pid_file = value;
	else if (!strcmp(name, "process"))
		call->process = value;
	else if (!strcmp(name, "force"))
		call->force = true;
	else if (!strcmp(name, "all"))
		call->all = true;
	else if (!strcmp(name, "detach"))
		call->detach = true;
}

/* Read one argument that may hold options; return how many were used, 0 if it is not sure. */
static int read_option(struct call *call, const struct option *options, char **rest)
{
	const char *text = rest[0] + (rest[0][1] == '-' ? 2 : 1);
	const char *equals = strchr(text, '='), *value = equals ? equals + 1 : NULL;
	const struct option *found = named(options, text, equals ? (size_t)(equals - text) : strlen(text));
	while (!found && rest[0][1] != '-' && *text) { /* letters, the last perhaps with its value */
		for (found = options; found->name && !strchr(found->letters, *text); found++)
			;
		if (!found->name || found->aside)
			return 0;
		text++;
		if (!found->metavar && *text && *text != '=') {
			keep(call, found->name, "");
			found = NULL;
			continue;
		}
		value = *text ? text + (*text == '=') : NULL;
		break;
	}
	if (!found || found->aside)
		return 0;
	if (!found->metavar) {
		if (value) /* --flag=false */
			return 0;
		keep(call, found->name, "");
		return 1;
	}
	int used = value ? 1 : 2;
	if (!value && (found->metavar[0] == '[' || !(value = rest[1])))
		return 0;
	if (strchr(found->metavar, '|') && found->metavar[0] != '[' && !is_one_of(found->metavar, value))
		return 0;
	keep(call, found->name, value);
	return used;
}

/* Only what check_id of scrun/oci/ids.py takes becomes part of a path. */
static bool is_id(const char *text)
{
	size_t size = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+.-");
	return size && !text[size] && size <= LONGEST_ID && strcmp(text, ".") && strcmp(text, "..");
}

/* Whether a file is one that only this process can open, such as `/dev/fd/63`. */
static bool is_ours_alone(const char *path)
{
	return path && (!strncmp(path, "/dev/", 5) || !strncmp(path, "/proc/", 6));
}

static bool read_command_line(struct call *call)
{
	char **rest = call->argv + 1;
	int used;
	for (; *rest && (*rest)[0] == '-' && (*rest)[1]; rest += used)
		if (!strcmp(*rest, "--") || !(used = read_option(call, GLOBAL, rest)))
			return false;
	const struct known *known = NULL;
	for (size_t at = 0; *rest && at < sizeof KNOWN / sizeof *KNOWN; at++)
		if (!strcmp(KNOWN[at].name, *rest)) {
			known = &KNOWN[at];
			call->command = (enum command)at;
			call->name = known->name;
		}
	if (!known)
		return false;
	int operands = 0;
	for (rest++; *rest; rest += used) {
		used = 1;
		if ((*rest)[0] == '-' && (*rest)[1]) {
			if (!strcmp(*rest, "--") || !(used = read_option(call, known->options, rest)))
				return false;
		} else if (operands == known->operands) {
			return false;
		} else if (operands++) {
			call->signal = *rest;
		} else {
			call->id = *rest;
			if (known->open_ended) /* the rest is the program's; without one, Python has the words */
				return (rest[1] || call->process) && is_id(call->id) && !is_ours_alone(call->process);
		}
	}
	return call->id && is_id(call->id);
}

/* Whether it is a container of a pod's supervisor: after its `start`, another one is started. */
static bool is_of_a_pod(const struct call *call)
{
	char link[4200], leads[4200];
	snprintf(link, sizeof link, "%s/supervisor", call->record);
	ssize_t size = readlink(link, leads, sizeof leads - 1);
	if (size < 0)
		return false;
	leads[size] = 0;
	return strstr(leads, "/@pod-");
}

static void forward(struct call *call)
{
	struct request request = {0};
	add_text(&request, call->name);
	add_text(&request, call->id);
	if (call->command == KILL) {
		add_text(&request, call->signal ? call->signal : "TERM");
		if (call->all)
			add_text(&request, "1");
	} else if (call->command == DELETE) {
		add_text(&request, call->force ? "1" : "");
	}
	int sock = connect_to(call->record, "supervisor");
	if (sock < 0 || request.size > LONGEST)
		step_aside(call, NULL, -1);
	if (!send_request(sock, &request, NULL, 0))
		step_aside(call, "again", -1);
	struct reply reply = receive(sock);
	if (reply.error == ECONNRESET)
		step_aside(call, "again", -1);
	if (reply.error)
		step_aside(call, "failed=", reply.error);
	if (reply.data[0] || (call->command == DELETE && reply.size > 1))
		hand_over(call, reply.data, reply.size);
	signal(SIGPIPE, SIG_IGN); /* the reader may have gone */
	for (size_t at = 1; at < reply.size;) {
		ssize_t written = write(1, reply.data + at, reply.size - at);
		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0 && errno != EBADF && errno != EPIPE) { /* full, or made not to block */
			reply.data[at - 1] = 0;
			hand_over(call, reply.data + at - 1, reply.size - at + 1);
		}
		if (written < 0)
			return;
		at += (size_t)written;
	}
}

int main(int argc, char **argv)
{
	static struct call call;
	call.argc = argc;
	call.argv = argv;
	if (argc > 0 && !strncmp(argv[0], ANCHOR, strlen(ANCHOR)))
		stay(-1);
	for (int fd = 0; fd <= 2; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			step_aside(&call, NULL, -1);
	if (!read_command_line(&call) || !find_root(&call) || (call.command == STATE && isatty(1)))
		step_aside(&call, NULL, -1);
	if (call.command == CREATE)
		create(&call);
	size_t root = strlen(call.record);
	if (root + 1 + strlen(call.id) >= sizeof call.record)
		step_aside(&call, NULL, -1);
	snprintf(call.record + root, sizeof call.record - root, "/%s", call.id);
	if (call.command == EXEC)
		execute(&call);
	if (call.command == START && is_of_a_pod(&call))
		step_aside(&call, NULL, -1);
	forward(&call);
	return 0;
}
