/* The client in C, given what others choose: a command line, the file with settings, replies.
 *
 * The first byte says which. Built by tests/stress/fuzz/client.py, with libFuzzer or alone. What
 * leaves the process returns to `LLVMFuzzerTestOneInput`, and no program is ever called. */
#include <setjmp.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static jmp_buf out;
static _Noreturn void leave(int status)
{
	(void)status;
	longjmp(out, 1);
}
static int spawn(pid_t *pid, char **argv)
{
	for (*pid = 0; *argv; argv++)
		*pid += (pid_t)(**argv == '-');
	return 2;
}
#define _exit leave
#define posix_spawnp(pid, file, actions, attributes, argv, environment) spawn(pid, argv)
#define main client
#include "anchor.c"
#undef KINDS
#include "container.c"
#include "main.c"
#include "pid_file.c"
#include "settings.c"
#include "wire.c"
#undef _exit
#undef main

void no_memory(void) { longjmp(out, 1); }
void step_aside(const struct call *call, const char *hint, int fd)
{
	(void)call, (void)hint, (void)fd;
	longjmp(out, 1);
}
void hand_over(const struct call *call, const char *answer, size_t size)
{
	unsigned sum = 0;
	while (size--)
		sum += (unsigned char)answer[size];
	step_aside(call, "", (int)sum);
}
void fail(const struct call *call, const char *what, const char *path, int error)
{
	step_aside(call, *path ? path : what, error);
}

static void command_line(char *text, size_t size)
{
	static struct call call;
	static char *argv[512];
	memset(&call, 0, sizeof call);
	call.argv = argv;
	argv[call.argc++] = "scrun";
	for (size_t at = 0; at < size && call.argc < 511; at += strlen(text + at) + 1)
		argv[call.argc++] = text + at;
	argv[call.argc] = NULL;
	if (!read_command_line(&call))
		return;
	if (!is_id(call.id) || strchr(call.id, '/'))
		abort();
	struct request request = {0};
	find_root(&call);
	add_call(&request, &call, 1);
	free(request.data);
}

/* The file that the Python program leaves in the runtime directory, which FUZZED names. */
static void settings(const char *text, size_t size)
{
	const char *directory = getenv("FUZZED"), *root = NULL;
	char path[4200];
	snprintf(path, sizeof path, "%s/@settings-cbf29ce484222325", directory);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, text, size) != (ssize_t)size || close(fd))
		abort();
	if (recall(directory, "", &root) && strlen(root) + strlen(group) > size)
		abort();
	is_for_all();
}

static void replies(int kind, const char *text, size_t size)
{
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
		abort();
	for (size_t sent = 0, part; sent < size; sent += part) { /* as it may arrive, while there is room */
		part = size < 400 && size - sent > 7 ? 7 : size - sent;
		if (send(ends[1], text + sent, part, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)part)
			break;
	}
	shutdown(ends[1], SHUT_WR);
	static struct reply reply; /* static, as their values count after a longjmp */
	static struct request kept;
	static bool shown;
	memset(&reply, 0, sizeof reply);
	memset(&kept, 0, sizeof kept);
	if (!setjmp(out)) {
		if (kind == 0)
			reply = receive(ends[0]);
		else if (kind == 1)
			read_reply(ends[0], &reply, -1, &kept, &shown);
		else
			stay(ends[0]);
	}
	free(reply.data);
	free(kept.data);
	close(ends[0]);
	close(ends[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!size)
		return 0;
	char *text = malloc(size); /* of this size, so that each byte beyond is noticed */
	if (!text)
		abort();
	memcpy(text, data + 1, size - 1);
	text[size - 1] = 0;
	int kind = *data % 5;
	if (kind >= 2)
		replies(kind - 2, text, size - 1);
	else if (!setjmp(out)) {
		if (kind)
			settings(text, size - 1);
		else
			command_line(text, size);
	}
	free(text);
	return 0;
}

#ifdef ALONE
/* Inputs come from standard input, each after its length in four bytes, the highest first. */
int main(void)
{
	unsigned char head[4];
	while (fread(head, 1, 4, stdin) == 4) {
		size_t size = (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
		uint8_t *data = malloc(size + 1);
		if (!data || fread(data, 1, size, stdin) != size)
			return 1;
		LLVMFuzzerTestOneInput(data, size);
		free(data);
	}
	puts("done");
	return 0;
}
#endif
