/* Ranks: what options and launchers say, which goes first, what is refused and in which words. */
#include "serve/rank.h"
#include "tap.h"

/* The environment under test: "NAME=value" with blanks between them. */
static const char *environment;

static const char *get(const char *name)
{
	static char value[8][100];
	static unsigned turn;
	char *v = value[turn++ % 8];
	size_t n = strlen(name);

	for (const char *p = environment; *p; p += strcspn(p, " "), p += *p == ' ')
		if (strncmp(p, name, n) == 0 && p[n] == '=') {
			size_t len = strcspn(p + n + 1, " ");

			memcpy(v, p + n + 1, len);
			v[len] = '\0';
			return v;
		}
	return NULL;
}

static struct rank_options none(void)
{
	return (struct rank_options)RANK_OPTIONS_NONE;
}

static struct rank_options given(int64_t rank, int64_t world, int64_t local)
{
	return (struct rank_options){ NULL, rank, world, local };
}

static void is(struct rank_options o, const char *env, size_t rank, size_t world, size_t local, const char *from)
{
	struct ds_err err = { 0 };
	struct rank r;
	int rc;

	environment = env;
	rc = rank_find(&o, get, &r, &err);
	tap_ok(!rc && r.rank == rank && r.world == world && r.local == local && strcmp(r.from, from) == 0,
		"rank %zu of %zu, local %zu, by '%s': %s", rank, world, local, from, env);
	if (rc)
		tap_diag("%d: %s", rc, err.text);
	else
		tap_diag("%zu of %zu, local %zu, by '%s'", r.rank, r.world, r.local, r.from);
}

static void refused(struct rank_options o, const char *env, const char *a, const char *b)
{
	struct ds_err err = { 0 };
	struct rank r;
	int rc;

	environment = env;
	rc = rank_find(&o, get, &r, &err);
	tap_ok(rc == DS_CONFIG && strstr(err.text, a) && strstr(err.text, b), "refused with '%s', '%s': %s", a, b, env);
	if (rc != DS_CONFIG || !strstr(err.text, a) || !strstr(err.text, b))
		tap_diag("%d: %s", rc, rc ? err.text : "");
}

#define OMPI "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=0"
#define PMI "PMI_RANK=2 PMI_SIZE=4"
#define SLURM "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=5 SLURM_LOCALID=1"
#define TORCH "RANK=4 WORLD_SIZE=6 LOCAL_RANK=2"
#define LWS "LWS_WORKER_INDEX=5 LWS_GROUP_SIZE=7 LWS_LEADER_ADDRESS=leader.example"
#define JOB "JOB_COMPLETION_INDEX=6"

static void test_sets(void)
{
	is(none(), "", 0, 1, 0, "");
	is(given(2, 8, -1), "", 2, 8, 2, "--rank");
	is(given(2, 8, 1), "", 2, 8, 1, "--rank");
	is(none(), "DS_RANK=2 DS_WORLD_SIZE=8", 2, 8, 2, "DS_RANK");
	is(none(), "DS_RANK=2 DS_WORLD_SIZE=8 DS_LOCAL_RANK=1", 2, 8, 1, "DS_RANK");
	is(none(), OMPI, 1, 3, 0, "OMPI_COMM_WORLD_RANK");
	is(none(), "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3", 1, 3, 1, "OMPI_COMM_WORLD_RANK");
	is(none(), PMI, 2, 4, 2, "PMI_RANK");
	is(none(), PMI " MPI_LOCALRANKID=0", 2, 4, 0, "PMI_RANK");
	is(none(), SLURM, 3, 5, 1, "SLURM_PROCID");
	is(none(), TORCH, 4, 6, 2, "RANK");
	is(none(), LWS, 5, 7, 0, "LWS_WORKER_INDEX");
	is(given(-1, 9, -1), JOB, 6, 9, 0, "JOB_COMPLETION_INDEX");
	is(none(), JOB " DS_WORLD_SIZE=9", 6, 9, 0, "JOB_COMPLETION_INDEX");
	is(given(0, 1, -1), "", 0, 1, 0, "--rank");
	is(given(1023, 1024, -1), "", 1023, 1024, 1023, "--rank");
}

static void test_precedence(void)
{
	is(given(0, 2, -1), "DS_RANK=7 DS_WORLD_SIZE=8 " OMPI, 0, 2, 0, "--rank");
	is(given(0, -1, -1), "DS_RANK=7 DS_WORLD_SIZE=8", 0, 8, 0, "--rank"); /* one by one */
	is(given(-1, 9, -1), "DS_RANK=7 DS_WORLD_SIZE=8", 7, 9, 7, "DS_RANK");
	is(none(), "DS_RANK=7 DS_WORLD_SIZE=8 " OMPI, 7, 8, 7, "DS_RANK");
	is(none(), JOB " " LWS " " TORCH " " SLURM " " PMI " " OMPI, 1, 3, 0, "OMPI_COMM_WORLD_RANK");
	is(none(), JOB " " LWS " " TORCH " " SLURM " " PMI, 2, 4, 2, "PMI_RANK");
	is(none(), JOB " " LWS " " TORCH " " SLURM, 3, 5, 1, "SLURM_PROCID");
	is(none(), JOB " " LWS " " TORCH, 4, 6, 2, "RANK");
	is(none(), JOB " " LWS, 5, 7, 0, "LWS_WORKER_INDEX");
	is(given(-1, -1, 0), OMPI " OMPI_COMM_WORLD_LOCAL_RANK=7", 1, 3, 0, "OMPI_COMM_WORLD_RANK");
	is(given(-1, 3, -1), OMPI, 1, 3, 0, "OMPI_COMM_WORLD_RANK"); /* says the same */
	is(none(), "DS_RANK= OMPI_COMM_WORLD_RANK= " SLURM, 3, 5, 1, "SLURM_PROCID");
	/* a batch script's own shell has half of srun's set */
	is(none(), "SLURM_PROCID=0 SLURM_LOCALID=0 " TORCH, 4, 6, 2, "RANK");
	is(none(), "PMI_RANK=x OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", 1, 2, 1, "OMPI_COMM_WORLD_RANK");
}

static void test_refused(void)
{
	refused(none(), "RANK=4 WORLD_SIZE=6", "RANK is '4'",
		"RANK without LOCAL_RANK means nodes to some launchers and processes to others");
	refused(none(), "RANK=4", "LOCAL_RANK is not set", "RANK is '4'");
	refused(none(), "RANK=4 WORLD_SIZE=6 " LWS, "LOCAL_RANK is not set", "RANK is '4'");
	refused(none(), "WORLD_SIZE=6 LOCAL_RANK=0", "WORLD_SIZE is '6'", "RANK is not set");
	refused(none(), "RANK=1 LOCAL_RANK=1", "RANK is '1'", "WORLD_SIZE is not set");
	refused(none(), "SLURM_PROCID=3 SLURM_LOCALID=0", "SLURM_PROCID is '3'", "SLURM_STEP_NUM_TASKS is not set");
	refused(none(), "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4", "SLURM_PROCID is '3'", "SLURM_LOCALID is not set");
	refused(none(), "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_RANK is '1'", "OMPI_COMM_WORLD_SIZE is not set");
	refused(none(), "PMI_SIZE=4", "PMI_SIZE is '4'", "PMI_RANK is not set");
	refused(none(), "LWS_GROUP_SIZE=4", "LWS_GROUP_SIZE is '4'", "LWS_WORKER_INDEX is not set");
	refused(none(), JOB, "JOB_COMPLETION_INDEX is '6'", "use --world N");
	refused(given(3, -1, -1), "", "--rank 3", "use --world N");
	refused(given(3, -1, -1), OMPI, "--rank 3", "use --world N");
	refused(given(-1, 8, -1), "", "--world 8", "use --rank N");
	refused(none(), "DS_RANK=3", "DS_RANK 3", "use --world N");
	refused(none(), "DS_WORLD_SIZE=8", "DS_WORLD_SIZE 8", "use --rank N");
	refused(given(-1, 8, -1), SLURM, "--world 8", "SLURM_STEP_NUM_TASKS is '5'");
	refused(given(8, 8, -1), "", "--rank 8", "--world 8");
	refused(given(-1, 6, -1), JOB, "JOB_COMPLETION_INDEX 6", "--world 6");
	refused(none(), "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=3", "OMPI_COMM_WORLD_RANK 3",
		"OMPI_COMM_WORLD_SIZE 3");
	refused(none(), "OMPI_COMM_WORLD_RANK=1x OMPI_COMM_WORLD_SIZE=3", "OMPI_COMM_WORLD_RANK", "'1x'");
	refused(none(), "SLURM_PROCID=-1", "SLURM_PROCID", "'-1'");
	refused(none(), "DS_RANK=99999999999999999999 DS_WORLD_SIZE=2", "DS_RANK", "'99999999999999999999'");
	refused(none(), "DS_RANK=0 DS_WORLD_SIZE=0", "DS_WORLD_SIZE", "'0'");
	refused(none(), "DS_RANK=0 DS_WORLD_SIZE=1025", "DS_WORLD_SIZE", "'1025'");
	refused(none(), "RANK=1 WORLD_SIZE=2 LOCAL_RANK=one", "LOCAL_RANK", "'one'");
}

static void test_unit(void)
{
	struct rank_options o = none();
	struct ds_err err;
	struct rank r;

	environment = OMPI;
	tap_ok(!rank_find(&o, get, &r, &err) && !r.unit, "processes of a launcher are no unit by that alone");
	environment = "DS_UNIT=unix:x";
	tap_ok(!rank_find(&o, get, &r, &err) && r.unit && strcmp(r.unit, "unix:x") == 0 && r.world == 1,
		"DS_UNIT makes one, of one rank");
	o.unit = "tcp:h:1";
	tap_ok(!rank_find(&o, get, &r, &err) && strcmp(r.unit, "tcp:h:1") == 0, "--unit goes before it");
}

static void named(const char *text, const char *want)
{
	struct rank r = { .rank = 1023, .world = 1024, .local = 7, .from = "" };
	struct ds_err err = { 0 };
	char *s;
	int rc = rank_name(&r, "--output", text, &s, &err);

	if (want)
		tap_ok(!rc && strcmp(s, want) == 0, "'%s' is '%s'", text, want);
	else
		tap_ok(rc == DS_USAGE && !s && strstr(err.text, "--output: '"), "'%s' is refused", text);
	free(s);
}

static void test_names(void)
{
	named("out.%r", "out.1023");
	named("%r%l%%%%r%r", "10237%%r1023");
	named("", "");
	named("out", "out");
	named("out.%d", NULL);
	named("out.%", NULL);
}

int main(void)
{
	test_sets();
	test_precedence();
	test_refused();
	test_unit();
	test_names();
	return tap_done();
}
