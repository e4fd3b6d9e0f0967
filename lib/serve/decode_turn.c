/*
 * Who takes part in a step, and room in the KV memory for them.
 *
 * Places in a step go round by request: each has one in turn, then each that has further choices a second one, and so
 * on; those who had one stand behind the others next time.  So no request waits for another's length, however many
 * choices that has.  A place that falls to a prompt goes to the oldest one, since prompts behind it may begin as it
 * does and find what it computed, but not for ever.
 *
 * KV memory goes by precedence: first choices before second ones and so on, then by age.  Who precedes all others can
 * take the blocks of any, so that it goes on, and in the end all do.  Who lacks room holds up those after it: they must
 * not take the blocks that it waits for.
 */
#include <string.h>

#include "serve/decode_impl.h"

enum { PASSED_MOST = 8 }; /* turns of a prompt that older ones may have */

/* ---- room ---- */

static bool has_blocks(const struct job *k)
{
	return k->kv.count && !k->parked.bytes;
}

/* It cannot run: its KV is still arriving (and goes on arriving into ordinary memory; one whose block is being read at
 * this moment keeps its own, --peer-timeout bounds that), or its answers are not being read. */
static bool idle(const struct job *k)
{
	return k->state == JOB_ARRIVING ? !k->g->incoming : source_blocked(k->g->src);
}

bool can_run(const struct job *j)
{
	return j->state != JOB_ARRIVING && !j->waits && !source_blocked(j->g->src);
}

static bool precedes(const struct job *a, const struct job *b)
{
	return a->rank != b->rank ? a->rank < b->rank : a->age < b->age;
}

/* None precedes j of those that can run. */
static bool is_first(const struct decode *d, const struct job *j)
{
	const struct job *k;

	TAILQ_FOREACH(k, &d->jobs, link)
		if (can_run(k))
			return k == j;
	return false;
}

/* Who gives its blocks to j, which could run: first those that cannot, whatever their precedence; then the last of
 * those behind j that are not in this step already.  NULL if there is none, or if ordinary memory has no room for them
 * and j can wait. */
static struct job *victim(struct decode *d, const struct job *j)
{
	struct job *k, *last = NULL;

	if (outside(d) >= outside_most(d) && !is_first(d, j))
		return NULL;

	TAILQ_FOREACH_REVERSE(k, &d->jobs, job_list, link) {
		if (k == j || k->rows || k->waits || !has_blocks(k)) /* what is fetched arrives soon */
			continue;
		if (idle(k))
			return k;
		if (k->state != JOB_ARRIVING && precedes(j, k) && (!last || precedes(last, k)))
			last = k;
	}
	return last;
}

static bool park_another(struct decode *d, const struct job *j)
{
	struct job *k = victim(d, j);

	if (!k)
		return false;
	if (k->state == JOB_ARRIVING)
		k->kv.length = k->g->arrived * KV_BLOCK;
	return park(d, k);
}

/* The KV of j is in blocks, perhaps at the cost of others'. */
static bool bring_back(struct decode *d, struct job *j)
{
	if (!j->parked.bytes)
		return true;
	/* One block more than it had, so that it is not parked again at once. */
	while (kv_pool_available(d->w->pool) < unpark_needs(d, j) + 1)
		if (!park_another(d, j))
			break;
	return unpark(d, j);
}

static bool make_room(struct decode *d, struct job *j, size_t rows)
{
	while (!kv_seq_reserve(&j->kv, d->w->pool, j->kv.length + rows))
		if (!park_another(d, j))
			return false;
	return true;
}

/* Refuses a request that no parking can help, since all of the memory would not do; begins a prompt, as late as this so
 * that it finds what was computed meanwhile. */
static int admit(struct decode *d, struct job *j, struct ds_err *err)
{
	if (j->state == JOB_READY && kv_blocks_for(j->position + 1) > d->w->pool->blocks)
		return err_set(err, DS_CONFIG,
			"request '%s': token %llu does not fit in --kv-memory (%zu block%s of %d tokens)",
			j->g->request.id, (unsigned long long)j->position, d->w->pool->blocks,
			plural(d->w->pool->blocks), KV_BLOCK);
	return j->state == JOB_PROMPT && !j->at.begun ? prompt_begin(d->w, &j->at, err) : 0;
}

/* ---- turns ---- */

/* A step that is being put together. */
struct turns {
	struct decode *d;
	size_t n, budget;       /* who takes part; rows that are left for prompts */
	const struct job *short_of; /* who lacked room, the first of them by precedence; NULL: nobody */
	struct job *prompt;     /* the oldest that has not had its place; NULL: none */
};

static struct job *prompt_from(struct job *j)
{
	while (j && (j->state != JOB_PROMPT || j->rows || !can_run(j)))
		j = TAILQ_NEXT(j, link);
	return j;
}

/* Precedence, and each request's first choice; those of one stand together in the list. */
static void begin_turns(struct turns *t, struct decode *d)
{
	const struct group *last = NULL;
	size_t age = 0;
	struct job *j;

	*t = (struct turns){ .d = d, .budget = d->w->max_rows - d->o.max_batch };
	TAILQ_FOREACH(j, &d->jobs, link) {
		j->age = age++;
		j->rank = j->g == last ? TAILQ_PREV(j, job_list, link)->rank + 1 : 0;
		j->rows = 0;
		if (j->g != last)
			j->g->turn = can_run(j) ? j : NULL;
		last = j->g;
	}
	t->prompt = prompt_from(TAILQ_FIRST(&d->jobs));
}

/* Whose place it is when the turn has come to j. */
static struct job *heir(struct turns *t, struct job *j)
{
	struct job *oldest = t->prompt;

	if (j->state != JOB_PROMPT || !oldest || j == oldest)
		return j;
	if (j->g->passed >= PASSED_MOST && !j->rows)
		return j;
	j->g->passed++;
	return oldest;
}

/* j takes part if there is room for it.  Other than 0: why its request fails. */
static int place(struct turns *t, struct job *j, struct ds_err *err)
{
	struct decode *d = t->d;
	size_t rows = 1, left;
	int rc;

	if (j->rows || (t->short_of && !precedes(j, t->short_of)))
		return 0;
	rc = admit(d, j, err);
	if (rc)
		return rc;
	if (!bring_back(d, j)) {
		t->short_of = j;
		return 0;
	}
	if (j->state == JOB_PROMPT) {
		left = prompt_left(&j->at);
		rows = left < d->o.chunk ? left : d->o.chunk;
		rows = rows < t->budget ? rows : t->budget;
	}
	if (!make_room(d, j, rows)) {
		t->short_of = j;
		return 0;
	}
	j->rows = rows;
	d->stepping[t->n++] = j;
	if (j->state == JOB_PROMPT) {
		t->budget -= rows;
		j->g->passed = 0;
		if (j == t->prompt)
			t->prompt = prompt_from(j);
	}
	return 0;
}

/* One place for each request; *more: some have further choices.  Other than 0: why *bad fails. */
static int go_round(struct turns *t, bool *more, struct group **bad, struct ds_err *err)
{
	struct group *g;
	struct job *j, *who;
	size_t had;

	*more = false;
	TAILQ_FOREACH(g, &t->d->groups, link) {
		j = g->turn;
		if (t->n == t->d->o.max_batch)
			return 0;
		if (!j || (j->state == JOB_PROMPT && !t->budget))
			continue;
		had = t->n;
		who = heir(t, j);
		*bad = who->g;
		if (place(t, who, err))
			return err->code;
		if (t->n > had)
			t->d->turned[had] = g;
		g->turn = TAILQ_NEXT(j, link);
		if (g->turn && g->turn->g != g)
			g->turn = NULL;
		*more |= g->turn != NULL;
	}
	return 0;
}

/* Those whose turn it was stand behind the others. */
static void end_turns(struct turns *t)
{
	struct group_list *all = &t->d->groups;

	for (size_t i = 0; i < t->n; i++) {
		TAILQ_REMOVE(all, t->d->turned[i], link);
		TAILQ_INSERT_TAIL(all, t->d->turned[i], link);
	}
}

size_t choose(struct decode *d)
{
	struct group *bad;
	struct ds_err why;
	struct turns t;
	bool more;

	begin_turns(&t, d);
	do {
		if (go_round(&t, &more, &bad, &why)) {
			group_fail(d, bad, &why); /* others' places may be gone with it */
			memset(d->stepping, 0, t.n * sizeof(*d->stepping));
			begin_turns(&t, d);
			more = true;
		}
	} while (more && t.n < d->o.max_batch);
	end_turns(&t);
	return t.n;
}
