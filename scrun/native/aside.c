/* The way to the Python program: by execve, so that it has this process's pid and descriptors. */
#include "client.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The path by which this program was called, which argv[0] is not where PATH was searched. */
static const char *called_by(void)
{
	const char *path = (const char *)getauxval(AT_EXECFN);
	return path ? path : "scrun";
}

static void say(const char *text) { (void)!write(2, text, strlen(text)); }

void no_memory(void)
{
	say("scrun: there is not enough memory\n");
	_exit(1);
}

/* Outside of an environment, Python is the one in whose packages scrun is. */
static bool find_packages(const char *place, char *python, size_t size)
{
	char path[4400];
	snprintf(path, sizeof path, "%s/../lib", place);
	DIR *lib = opendir(path);
	for (struct dirent *entry; lib && (entry = readdir(lib));)
		for (int at = 0; at < 2; at++) {
			const char *kind = at ? "dist" : "site";
			snprintf(path, sizeof path, "%s/../lib/%s/%s-packages/scrun", place, entry->d_name, kind);
			if (strncmp(entry->d_name, "python3", 7) || access(path, F_OK))
				continue;
			snprintf(python, size, "%s/%s", place, entry->d_name);
			if (access(python, X_OK))
				snprintf(python, size, "%s", entry->d_name);
			return true;
		}
	return false;
}

/* Call the Python program with the same command line, descriptors and environment.
 *
 * `hint` is what it has to know besides, for scrun.main: NAME=, with the number of a descriptor,
 * or whole. */
void step_aside(const struct call *call, const char *hint, int fd)
{
	char self[4096], python[4400], prefix[4400], program[4400], client[4200], told[64];
	ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
	self[size > 0 ? size : 0] = 0;
	char *slash = strrchr(self, '/');
	snprintf(client, sizeof client, "client=%s", self);
	if (slash)
		*slash = 0;
	snprintf(prefix, sizeof prefix, "%s/../pyvenv.cfg", self);
	bool bare = !access(prefix, F_OK);
	snprintf(python, sizeof python, "%s/python3", self);
	snprintf(program, sizeof program, "%s/../share/scrun/main.py", self);
	if (access(program, F_OK) || !(bare || find_packages(self, python, sizeof python))) {
		say("scrun: ");
		say(called_by());
		say(": its packages are not in ");
		if ((slash = strrchr(self, '/')))
			*slash = 0;
		say(self);
		say("/lib: call the scrun that was installed, or make a symbolic link to it, not a copy\n");
		_exit(1);
	}
	snprintf(prefix, sizeof prefix, "prefix=%s/..", self);
	size_t room = strlen(called_by()) + 8;
	char *called = malloc(room), **argv = calloc((size_t)call->argc + 14, sizeof *argv);
	if (!called || !argv)
		no_memory();
	snprintf(called, room, "called=%s", called_by());
	char *options[] = {python, bare ? "-IS" : "-I", "-X", prefix, "-X", called, "-X", client};
	memcpy(argv, options, sizeof options);
	int count = sizeof options / sizeof *options;
	if (hint) {
		snprintf(told, sizeof told, fd < 0 ? "%s" : "%s%d", hint, fd);
		argv[count++] = "-X";
		argv[count++] = told;
	}
	argv[count++] = program;
	for (int at = 1; at < call->argc; at++)
		argv[count++] = call->argv[at];
	execvp(python, argv);
	say("scrun: ");
	say(python);
	say(": cannot be executed: ");
	say(strerror(errno));
	say("; install scrun again\n");
	_exit(1);
}

/* Have the Python program report an answer. */
void hand_over(const struct call *call, const char *answer, size_t size)
{
	int fd = memfd_create("answer", 0);
	signal(SIGXFSZ, SIG_IGN); /* RLIMIT_FSIZE holds for memory, too */
	for (size_t at = 0; at < size;) {
		ssize_t written = write(fd, answer + at, size - at);
		if (written < 0) {
			say("scrun: its answer cannot be shown: ");
			say(strerror(errno));
			say("; raise the limits, which `ulimit -a` lists\n");
			_exit(1);
		}
		at += (size_t)written;
	}
	step_aside(call, "answered=", fd);
}

/* Report an error of a system call's. */
void fail(const struct call *call, const char *what, const char *path, int error)
{
	char text[8400];
	int size = snprintf(text, sizeof text, "\1%s%s%s%s", what, path, *path ? ": " : "",
	                    error ? strerror(error) : "");
	hand_over(call, text, (size_t)size < sizeof text ? (size_t)size : sizeof text - 1);
}
