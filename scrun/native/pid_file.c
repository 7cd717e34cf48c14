/* The file of `--pid-file`, as scrun/anchor/pid_file.py makes it: it appears complete, and locked
 * while the anchor lives; another one that somebody has locked is not replaced. */
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* Hold the lock of the file that is to be replaced; false if it is one that we do not replace. */
static bool may_replace(struct pid_file *file)
{
	struct stat status;
	struct flock whole = {.l_type = F_RDLCK};
	if (lstat(file->path, &status))
		return errno == ENOENT;
	if (S_ISLNK(status.st_mode))
		return true;
	if (!S_ISREG(status.st_mode))
		return false;
	file->replaced = open(file->path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (file->replaced < 0) /* of somebody else, or removed meanwhile */
		return true;
	bool is_locked = flock(file->replaced, LOCK_EX | LOCK_NB) ||
	                 fcntl(file->replaced, F_OFD_SETLK, &whole);
	return !is_locked || (errno != EAGAIN && errno != EACCES);
}

/* Make it, locked and without a name; false if the Python program has to say what is wrong. */
bool make_pid_file(struct pid_file *file, const char *path)
{
	const char *slash = strrchr(path, '/');
	int directory = slash ? (int)(slash - path) + 1 : 0;
	struct flock whole = {.l_type = F_WRLCK};
	unsigned random;
	file->path = path;
	file->lock = file->replaced = -1;
	file->is_named = false;
	if (strlen(path) > 4000 || strlen(path) - (size_t)directory > 255 || getrandom(&random, 4, 0) != 4)
		return false;
	snprintf(file->temporary, sizeof file->temporary, "%.*s.", directory, path);
	if (may_replace(file))
		file->lock = open(file->temporary, O_RDWR | O_CLOEXEC | O_TMPFILE, 0600);
	snprintf(file->temporary, sizeof file->temporary, "%.*s.scrun-%d-%08x", directory, path,
	         (int)getpid(), random);
	if (file->lock >= 0 && !flock(file->lock, LOCK_EX | LOCK_NB) && !fchmod(file->lock, 0644)) {
		fcntl(file->lock, F_OFD_SETLK, &whole); /* on NFS it is the same lock */
		return true;
	}
	discard(file); /* among others where a file system has no files without a name */
	return false;
}

bool write_pid(struct pid_file *file, pid_t pid)
{
	char text[16];
	int size = snprintf(text, sizeof text, "%d", (int)pid);
	return pwrite(file->lock, text, (size_t)size, 0) == size && !ftruncate(file->lock, size);
}

/* Give it its name; from then on an engine may work with the process. */
bool publish(struct pid_file *file)
{
	char self[64];
	snprintf(self, sizeof self, "/proc/self/fd/%d", file->lock);
	file->is_named = !linkat(AT_FDCWD, self, AT_FDCWD, file->temporary, AT_SYMLINK_FOLLOW);
	if (!file->is_named || rename(file->temporary, file->path))
		return false;
	file->is_named = false;
	return true;
}

/* Remove it, unless it was published. */
void discard(struct pid_file *file)
{
	if (file->is_named)
		unlink(file->temporary);
	if (file->replaced >= 0)
		close(file->replaced);
	if (file->lock >= 0)
		close(file->lock);
	file->lock = file->replaced = -1;
}
