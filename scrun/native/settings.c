/* Where to ask: the root directory, and whether one supervisor serves all of a user's containers.
 *
 * What `root` and `group` of scrun.toml are stands in a file that the Python program leaves in the
 * runtime directory (scrun/settings/file/sources.py), with the identity of each file that it
 * comes from. Any doubt, and Python is asked. */
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NOBODY 65534

static const char *group;

/* Read a small file to its end, and put a NUL behind it. */
bool read_file(const char *path, char *into, size_t size, size_t *length)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	ssize_t part = -1;
	*length = 0;
	while (fd >= 0 && *length < size - 1) {
		part = read(fd, into + *length, size - 1 - *length);
		if (part < 0 && errno == EINTR)
			continue;
		if (part <= 0)
			break;
		*length += (size_t)part;
	}
	into[*length] = 0;
	if (fd >= 0)
		close(fd);
	return !part; /* not where it is longer */
}

/* What a uid is outside of this user namespace, -1 if it is not mapped (user_namespaces(7)). */
static long long outer(unsigned long long uid)
{
	char map[16384];
	size_t length;
	unsigned long long inside, outside, count;
	if (!read_file("/proc/self/uid_map", map, sizeof map, &length))
		return -1;
	for (char *line = map; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
		if (sscanf(line, "%llu %llu %llu", &inside, &outside, &count) == 3 && inside <= uid &&
		    uid < inside + count)
			return (long long)(outside + uid - inside);
	return -1;
}

/* Nobody else may write to a directory or replace it: the rule of `replaceable` in
 * scrun/core/paths.py, which judges links and groups, too. */
static bool is_safe(const char *directory)
{
	char path[4096];
	struct stat here, above = {0};
	size_t size = strlen(directory);
	if (directory[0] != '/' || size >= sizeof path)
		return false;
	for (size_t at = 0; at <= size; at++) {
		if (at && directory[at] != '/' && directory[at])
			continue;
		snprintf(path, sizeof path, "%.*s", at ? (int)at : 1, directory);
		if (lstat(path, &here) || !S_ISDIR(here.st_mode))
			return false;
		bool ours = here.st_uid == 0 || here.st_uid == geteuid();
		if (!ours && here.st_uid == NOBODY && outer(NOBODY) != NOBODY)
			ours = !at || above.st_uid == NOBODY || above.st_dev != here.st_dev;
		if (!ours || (here.st_mode & 022 && !(here.st_mode & S_ISVTX)))
			return false;
		above = here;
	}
	return true;
}

/* The directory that scrun(1) names for `--root` where nothing else is set. */
static bool find_default(char *into, size_t size)
{
	long long uid = geteuid() ? (long long)geteuid() : outer(0);
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	struct stat status;
	if (uid < 0)
		return false;
	if (!uid) {
		snprintf(into, size, "/run/scrun");
	} else if (runtime && runtime[0] == '/') {
		size_t length = strlen(runtime);
		while (length && runtime[length - 1] == '/')
			length--;
		return (size_t)snprintf(into, size, "%.*s/scrun", (int)length, runtime) < size;
	} else {
		snprintf(into, size, "/run/user/%lld", uid);
		if (stat(into, &status) || !S_ISDIR(status.st_mode))
			return false;
		snprintf(into, size, "/run/user/%lld/scrun", uid);
	}
	return true;
}

/* Whether a settings file is what it was: `DEVICE INODE SIZE MTIME CTIME` in ns, or `-`. */
static bool is_unchanged(const char *path, const char *identity)
{
	char now[128] = "-";
	struct stat s;
	if (!stat(path, &s))
		snprintf(now, sizeof now, "%ju %ju %jd %jd %jd", (uintmax_t)s.st_dev, (uintmax_t)s.st_ino,
		         (intmax_t)s.st_size,
		         (intmax_t)s.st_mtim.tv_sec * 1000000000 + s.st_mtim.tv_nsec,
		         (intmax_t)s.st_ctim.tv_sec * 1000000000 + s.st_ctim.tv_nsec);
	else if (errno != ENOENT && errno != ENOTDIR)
		return false;
	return !strcmp(now, identity);
}

/* Find `root` and `group`; "" if they are not set. */
static bool recall(const char *directory, const char *named, const char **root)
{
	static char content[16384], path[4200];
	struct stat status;
	uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
	for (const char *at = named; *at; at++)
		hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
	snprintf(path, sizeof path, "%s/@settings-%016" PRIx64, directory, hash);
	size_t length;
	if (!is_safe(directory) || lstat(path, &status) || !S_ISREG(status.st_mode) ||
	    status.st_uid != geteuid() || status.st_mode & 077 ||
	    !read_file(path, content, sizeof content, &length) || !length || content[length - 1])
		return false;
	/* VERSION, NAMED, ROOT, GROUP, then PATH and IDENTITY of each file; each ends with NUL */
	const char *fields[64];
	size_t count = 0;
	for (const char *at = content; at < content + length && count < 64; at += strlen(at) + 1)
		fields[count++] = at;
	if (count < 6 || count % 2 || count == 64 || strcmp(fields[0], VERSION) || strcmp(fields[1], named))
		return false;
	for (size_t at = 4; at < count; at += 2)
		if (!is_unchanged(fields[at], fields[at + 1]))
			return false;
	*root = fields[2];
	group = fields[3];
	return true;
}

/* Write the root directory into `record`. */
bool find_root(struct call *call)
{
	static char fallback[4096];
	const char *named = call->config ? call->config : getenv("SCRUN_CONFIG");
	const char *of_environment = getenv("SCRUN_ROOT"), *root = call->root, *remembered = "";
	if (!root && of_environment && *of_environment)
		root = of_environment;
	named = named ? named : "";
	if (*named && *named != '/')
		return false;
	if (!root || call->command == CREATE) {
		if (!find_default(fallback, sizeof fallback) || !recall(fallback, named, &remembered))
			return false;
		if (!root)
			root = *remembered ? remembered : fallback;
	}
	size_t size = strlen(root);
	if (root[0] != '/' || strstr(root, "//") || strstr(root, "/.") || root[size - 1] == '/' ||
	    size >= sizeof call->record)
		return false;
	memcpy(call->record, root, size + 1);
	return true;
}

/* Whether new containers belong to the supervisor of all that this user has here. */
bool is_for_all(void)
{
	return group && (!*group || !strcmp(group, "user"));
}
