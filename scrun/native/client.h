/* The client: what an engine calls for each container, without an interpreter.
 *
 * It asks the supervisor and prints the answer. Whatever it is not sure of it hands to the Python
 * program (`step_aside`), which does every command by itself, before it has done anything that
 * would have to be undone; or together with the answer, for words that only that program has. */
#ifndef SCRUN_CLIENT_H
#define SCRUN_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define LOST 125          /* scrun.protocol.anchor */
#define ANCHOR "scrun-anchor " /* begins the name of an anchor; its container's id follows */
#define LONGEST_ID 255
#define LONGEST (16 << 20) /* of a request and of a reply: scrun.protocol.wire */

enum command { CREATE, START, STATE, KILL, DELETE, PAUSE, RESUME, EXEC };

struct call {
	int argc;
	char **argv;
	enum command command;
	const char *name;                            /* of the command */
	const char *id, *signal;                     /* operands */
	const char *root, *config, *pid_file, *process; /* values of options, or NULL */
	bool force, all, detach;                     /* options */
	char record[4096];                           /* ROOT, from `find_root` on; then ROOT/ID */
};

/* aside.c */
_Noreturn void step_aside(const struct call *call, const char *hint, int fd);
_Noreturn void no_memory(void);
_Noreturn void hand_over(const struct call *call, const char *answer, size_t size);
_Noreturn void fail(const struct call *call, const char *what, const char *path, int error);
/* settings.c */
bool find_root(struct call *call);
bool is_for_all(void);
bool read_file(const char *path, char *into, size_t size, size_t *length);
/* wire.c */
struct reply {
	char *data;
	size_t size;
	int error; /* ECONNRESET: there was none; ETIMEDOUT, EMSGSIZE: not a whole one */
	char missing[1024]; /* a program that was called for, and cannot be executed */
};
struct request {
	char *data;
	size_t size, room;
};
void add(struct request *request, const char *field, size_t size);
void add_text(struct request *request, const char *text);
void add_call(struct request *request, const struct call *call, pid_t pid);
int connect_to(const char *directory, const char *name);
bool send_request(int sock, struct request *request, const int *fds, int count);
bool send_with(int sock, const char *data, size_t size, const int *fds, int count);
struct reply receive(int sock);
bool more(int sock, struct reply *reply);
/* pid_file.c */
struct pid_file {
	const char *path;
	char temporary[4200];
	int lock, replaced; /* descriptors, or -1 */
	bool is_named;
};
bool make_pid_file(struct pid_file *file, const char *path);
bool write_pid(struct pid_file *file, pid_t pid);
bool publish(struct pid_file *file);
void discard(struct pid_file *file);
/* anchor.c */
struct anchor {
	pid_t pid, maker;
	int told;
};
bool leave_anchor(struct anchor *anchor, const char *id, int sock, int lock);
bool settle(struct anchor *anchor);
void reap(struct anchor *anchor);
void pass_signals_on(int sock, const struct call *call);
_Noreturn void stay(int sock);
/* container.c */
_Noreturn void create(struct call *call);
_Noreturn void execute(struct call *call);

#endif
