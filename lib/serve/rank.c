#include "serve/rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/opt.h"
#include "ep/ranks.h"

enum { UNSET = -1 };

/* What a launcher sets. */
struct set {
	const char *rank, *world, *local; /* world NULL: not said by this launcher */
	bool local_too;                   /* no set without it */
	bool one_a_pod;
};

static const struct set sets[] = {
	{ "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", false, false },
	{ "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", false, false },
	{ "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", true, false },
	{ "RANK", "WORLD_SIZE", "LOCAL_RANK", true, false },
	{ "LWS_WORKER_INDEX", "LWS_GROUP_SIZE", NULL, false, true },
	{ "JOB_COMPLETION_INDEX", NULL, NULL, false, true },
};

/* A number that was said, and by whom. */
struct said { int64_t n; const char *by; };

const char *rank_getenv(const char *name)
{
	return getenv(name);
}

/* ---- numbers ---- */

static int read_number(const char *(*get)(const char *), const char *name, int64_t min, int64_t max, struct said *s,
	struct ds_err *err)
{
	const char *v = name ? get(name) : NULL;

	s->n = UNSET;
	s->by = name;
	if (!v || !*v)
		return 0;
	if (parse_int(v, min, max, &s->n))
		return err_set(err, DS_CONFIG, "%s: '%s' is not a whole number from %lld to %lld", name, v,
			(long long)min, (long long)max);
	return 0;
}

static int read_rank(const char *(*get)(const char *), const char *name, struct said *s, struct ds_err *err)
{
	return read_number(get, name, 0, EP_MAX_WORLD - 1, s, err);
}

static int read_world(const char *(*get)(const char *), const char *name, struct said *s, struct ds_err *err)
{
	return read_number(get, name, 1, EP_MAX_WORLD, s, err);
}

/* An option goes before its variable. */
static void option(struct said *s, int64_t given, const char *name)
{
	if (given != UNSET)
		*s = (struct said){ given, name };
}

/* ---- sets ---- */

struct found { struct said rank, world, local; };

static int own(const struct rank_options *o, const char *(*get)(const char *), struct found *f, struct ds_err *err)
{
	int rc;

	if ((rc = o->rank == UNSET ? read_rank(get, "DS_RANK", &f->rank, err) : 0) ||
	    (rc = o->world == UNSET ? read_world(get, "DS_WORLD_SIZE", &f->world, err) : 0) ||
	    (rc = o->local_rank == UNSET ? read_rank(get, "DS_LOCAL_RANK", &f->local, err) : 0))
		return rc;
	option(&f->rank, o->rank, "--rank");
	option(&f->world, o->world, "--world");
	option(&f->local, o->local_rank, "--local-rank");
	if (f->rank.n != UNSET && f->world.n == UNSET)
		return err_set(err, DS_CONFIG, "%s %lld: of how many is not said; use --world N", f->rank.by,
			(long long)f->rank.n);
	return 0;
}

static bool complete(const struct set *s, const struct found *f)
{
	return f->rank.n != UNSET && (!s->world || f->world.n != UNSET) && (!s->local_too || f->local.n != UNSET);
}

static bool any(const struct found *f)
{
	return f->rank.n != UNSET || f->world.n != UNSET || f->local.n != UNSET;
}

/* Says which of a set is there and which is not. */
static int half(const struct set *s, const struct found *f, struct ds_err *err)
{
	const struct said *here = f->rank.n != UNSET ? &f->rank : f->world.n != UNSET ? &f->world : &f->local;
	const char *lacks = f->rank.n == UNSET ? s->rank : f->world.n == UNSET ? s->world : s->local;

	return err_set(err, DS_CONFIG, "%s is '%lld', but %s is not set; use --rank N and --world N", here->by,
		(long long)here->n, lacks);
}

/* Processes are counted by some who set these two alone (torchrun's older kin), nodes by others (operators for
 * Kubernetes): who is wrong does not notice. */
static int ambiguous(const struct found *f, struct ds_err *err)
{
	return err_set(err, DS_CONFIG,
		"RANK is '%lld', but LOCAL_RANK is not set: RANK without LOCAL_RANK means nodes to some launchers and "
		"processes to others; use --rank N and --world N", (long long)f->rank.n);
}

/* The first complete one; *s NULL: there is none. */
static int launched(const char *(*get)(const char *), const struct set **s, struct found *f, struct ds_err *err)
{
	const struct set *first = NULL;
	struct found halves = { 0 };
	int rc;

	for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
		*s = &sets[i];
		if ((rc = read_rank(get, sets[i].rank, &f->rank, err)) ||
		    (rc = read_world(get, sets[i].world, &f->world, err)) ||
		    (rc = read_rank(get, sets[i].local, &f->local, err)))
			return rc;
		if (complete(*s, f))
			return 0;
		if (strcmp(sets[i].rank, "RANK") == 0 && f->rank.n != UNSET && f->local.n == UNSET)
			return ambiguous(f, err);
		if (!first && any(f)) {
			first = *s;
			halves = *f;
		}
	}
	*s = NULL;
	return first ? half(first, &halves, err) : 0;
}

static int settle(const struct found *f, bool one_a_pod, struct rank *r, struct ds_err *err)
{
	if (f->rank.n >= f->world.n)
		return err_set(err, DS_CONFIG, "%s %lld is not below %s %lld", f->rank.by, (long long)f->rank.n,
			f->world.by, (long long)f->world.n);
	r->rank = (size_t)f->rank.n;
	r->world = (size_t)f->world.n;
	r->local = f->local.n != UNSET ? (size_t)f->local.n : one_a_pod ? 0 : r->rank;
	r->from = f->rank.by;
	return 0;
}

int rank_find(const struct rank_options *o, const char *(*get)(const char *name), struct rank *r, struct ds_err *err)
{
	const char *unit = get("DS_UNIT");
	struct found mine = { 0 }, f = { 0 };
	const struct set *s;
	int rc;

	*r = (struct rank){ .world = 1, .from = "", .unit = o->unit ? o->unit : unit && *unit ? unit : NULL };
	rc = own(o, get, &mine, err);
	if (rc || mine.rank.n != UNSET)
		return rc ? rc : settle(&mine, false, r, err);
	rc = launched(get, &s, &f, err);
	if (rc)
		return rc;
	if (!s && mine.world.n > 1)
		return err_set(err, DS_CONFIG, "%s %lld: which of these this process is is not said; use --rank N",
			mine.world.by, (long long)mine.world.n);
	if (!s) {
		r->from = mine.world.n == 1 ? mine.world.by : "";
		return 0;
	}
	if (f.world.n == UNSET && mine.world.n == UNSET)
		return err_set(err, DS_CONFIG, "%s is '%lld': of how many is not said; use --world N", s->rank,
			(long long)f.rank.n);
	if (f.world.n != UNSET && mine.world.n != UNSET && f.world.n != mine.world.n)
		return err_set(err, DS_CONFIG, "%s %lld, but %s is '%lld'; leave one away", mine.world.by,
			(long long)mine.world.n, s->world, (long long)f.world.n);
	if (f.world.n == UNSET)
		f.world = mine.world;
	if (mine.local.n != UNSET)
		f.local = mine.local;
	return settle(&f, s->one_a_pod, r, err);
}

/* ---- names ---- */

int rank_name(const struct rank *r, const char *option_name, const char *text, char **out, struct ds_err *err)
{
	size_t cap = strlen(text) * 5 + 1, n = 0; /* two letters become four digits at most */
	char *p = mem_array(cap, 1);

	*out = p;
	if (!p)
		return err_nomem(err, cap, "a name");
	for (const char *s = text; *s; s++) {
		if (*s != '%') {
			p[n++] = *s;
			continue;
		}
		s++;
		if (*s == '%') {
			p[n++] = '%';
		} else if (*s == 'r' || *s == 'l') {
			n += (size_t)snprintf(p + n, cap - n, "%zu", *s == 'r' ? r->rank : r->local);
		} else {
			free(p);
			*out = NULL;
			return err_set(err, DS_USAGE,
				"%s: '%s': a %% of a rank's file or address is followed by r (the rank), l (the local "
				"rank) or another %%", option_name, text);
		}
	}
	p[n] = '\0';
	return 0;
}
