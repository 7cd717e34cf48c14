/* Requests to a supervisor, as scrun/protocol/wire.py has them. */
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define ANSWER 30000 /* ms from the first byte of an answer to its last */

extern char **environ;

/* As realloc(3), for a process that cannot go on without. */
static void *grown(void *memory, size_t size)
{
	void *larger = realloc(memory, size);
	if (!larger) {
		free(memory);
		no_memory();
	}
	return larger;
}

/* Add a field; those before it end with NUL. The first four bytes are for the length. */
void add(struct request *request, const char *field, size_t size)
{
	size_t wanted = request->size + size + 5;
	if (wanted > request->room) {
		request->room = wanted * 2;
		request->data = grown(request->data, request->room);
	}
	if (!request->size)
		request->size = 4;
	else
		request->data[request->size++] = 0;
	memcpy(request->data + request->size, field, size);
	request->size += size;
}

void add_text(struct request *request, const char *text) { add(request, text, strlen(text)); }

/* Begin a request with a command line, umask, working directory and, for `create`, variables. */
void add_call(struct request *request, const struct call *call, pid_t pid)
{
	char number[32], directory[4096];
	mode_t mask = umask(077);
	umask(mask);
	if (!getcwd(directory, sizeof directory) || directory[0] != '/')
		step_aside(call, NULL, -1);
	add_text(request, call->name);
	snprintf(number, sizeof number, "%d", (int)pid);
	add_text(request, number);
	snprintf(number, sizeof number, "%o", (unsigned)mask);
	add_text(request, number);
	add_text(request, directory);
	snprintf(number, sizeof number, "%d", call->argc - 1);
	add_text(request, number);
	for (int at = 1; at < call->argc; at++)
		add_text(request, call->argv[at]);
	if (call->command != CREATE)
		return;
	size_t count = 0;
	while (environ[count])
		count++;
	while (count--) /* of two with one name the first counts, and there the last */
		if (strchr(environ[count], '='))
			add_text(request, environ[count]);
}

/* Connect to a supervisor of this user's; -1 if that is not possible, whatever the reason. */
int connect_to(const char *directory, const char *name)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct ucred peer;
	struct stat status;
	socklen_t size = sizeof peer;
	int holder = -1, sock;
	if (stat(directory, &status) || status.st_uid != geteuid())
		return -1;
	size_t length = strlen(directory) + 1 + strlen(name);
	if (length < sizeof address.sun_path) {
		strcpy(address.sun_path, directory);
		strcat(strcat(address.sun_path, "/"), name);
	} else if ((holder = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC)) >= 0)
		length = (size_t)snprintf(address.sun_path, sizeof address.sun_path,
		                          "/proc/self/fd/%d/%s", holder, name);
	if (length >= sizeof address.sun_path || (sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) < 0)
		sock = -1;
	else if (connect(sock, (struct sockaddr *)&address, sizeof address) ||
	         getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) || peer.uid != geteuid()) {
		close(sock);
		sock = -1;
	}
	if (holder >= 0)
		close(holder);
	return sock;
}

/* Send data, with descriptors beside its first byte. */
bool send_with(int sock, const char *data, size_t size, const int *fds, int count)
{
	union {
		char room[CMSG_SPACE(8 * sizeof(int))];
		struct cmsghdr header;
	} control = {0};
	for (size_t at = 0; at < size;) {
		struct iovec part = {(char *)data + at, size - at};
		struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
		if (!at && count) {
			message.msg_control = control.room;
			message.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
			control.header.cmsg_level = SOL_SOCKET;
			control.header.cmsg_type = SCM_RIGHTS;
			control.header.cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
			memcpy(CMSG_DATA(&control.header), fds, (size_t)count * sizeof(int));
		}
		ssize_t sent = sendmsg(sock, &message, MSG_NOSIGNAL);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0) /* it may have refused the rest, and answered */
			return errno == EPIPE;
		at += (size_t)sent;
	}
	return true;
}

bool send_request(int sock, struct request *request, const int *fds, int count)
{
	uint32_t length = (uint32_t)(request->size - 4);
	for (int at = 0; at < 4; at++)
		request->data[at] = (char)(length >> (24 - 8 * at));
	return send_with(sock, request->data, request->size, fds, count);
}

/* Receive more of a reply; false at its end, or where `error` says why. */
bool more(int sock, struct reply *reply)
{
	if (reply->size > LONGEST) {
		reply->error = EMSGSIZE;
		return false;
	}
	reply->data = grown(reply->data, reply->size + 65536);
	ssize_t part;
	while ((part = recv(sock, reply->data + reply->size, 65536, 0)) < 0 && errno == EINTR)
		;
	if (part < 0)
		reply->error = errno;
	if (part <= 0)
		return false;
	reply->size += (size_t)part;
	return true;
}

static long long now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

/* Receive a reply; the first byte may take as long as it likes. */
struct reply receive(int sock)
{
	struct reply reply = {0};
	struct pollfd polled = {.fd = sock, .events = POLLIN};
	for (long long end = 0; more(sock, &reply);) {
		end = end ? end : now() + ANSWER;
		while (now() < end && poll(&polled, 1, (int)(end - now())) < 0 && errno == EINTR)
			;
		if (now() >= end) {
			reply.error = ETIMEDOUT;
			break;
		}
	}
	if (!reply.error && !reply.size)
		reply.error = ECONNRESET;
	return reply;
}
