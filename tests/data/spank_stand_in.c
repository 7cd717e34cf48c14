/*
 * What stands for spank-lua's lua.so in tests: a plugin of that name, which registers the option
 * of the manual's example, does what that does, and notes where it was called with what. Its
 * second argument is the file for the notes.
 */
#include <slurm/spank.h>
#include <stdio.h>

SPANK_PLUGIN(lua, 1)

static char **arguments;

static void note(const char *what, const char *with)
{
	FILE *file = arguments ? fopen(arguments[1], "a") : NULL;

	if (!file)
		return;
	fprintf(file, "%d %s%s%s\n", spank_context(), what, with ? "=" : "", with ? with : "");
	fclose(file);
}

static int given;

static int handle(int val, const char *value, int remote)
{
	(void) val;
	note(remote ? "remote" : "here", value);
	given = 1;
	return 0;
}

static struct spank_option option = {
	"no-memory-overcommit", "HOW", "Disable memory overcommit on nodes of Slurm job", 2, 0, handle
};

int slurm_spank_init(spank_t spank, int count, char **words)
{
	arguments = count > 1 ? words : NULL;
	spank_option_register(spank, &option);
	return 0;
}

int slurm_spank_init_post_opt(spank_t spank, int count, char **words)
{
	(void) count;
	(void) words;
	if (spank_context() != S_CTX_REMOTE && given)
		return spank_job_control_setenv(spank, "NO_OVERCOMMIT", "1", 1) ? -1 : 0;
	return 0;
}
