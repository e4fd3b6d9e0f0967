/*
 * KV of choices in ordinary memory and back.  The blocks of a prompt that its choices share are copied once for all of
 * them: what a request takes there is its prompt once and each choice's own tokens, however many choices it has; those
 * that have not run yet share the block in which it ends, too.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "serve/decode_impl.h"

/* Blocks that the choices of a request which has started have in common: not the one in which the prompt ends. */
static size_t common_blocks(const struct group *g)
{
	return g->lead || g->request.n == 1 ? 0 : (g->prompt - 1) / KV_BLOCK;
}

size_t outside(const struct decode *d)
{
	const struct group *g;
	const struct job *j;
	size_t n = 0;

	TAILQ_FOREACH(j, &d->jobs, link)
		if (j->parked.bytes && !j->parked.borrowed)
			n += j->parked.blocks - j->parked.skip;
	TAILQ_FOREACH(g, &d->groups, link)
		n += (g->common ? common_blocks(g) : 0) + (g->stem != NULL);
	return n;
}

size_t outside_most(const struct decode *d) { return d->w->pool->blocks; }

bool park(struct decode *d, struct job *j)
{
	size_t skip = common_blocks(j->g);

	if (skip && !j->g->common)
		j->g->common = kv_seq_copy(&j->kv, d->w->pool, 0, skip);
	return (!skip || j->g->common) && kv_seq_park(&j->kv, d->w->pool, skip, &j->parked);
}

/* Another choice of the request whose KV is in blocks, or NULL. */
static const struct kv_seq *sibling(const struct decode *d, const struct job *j)
{
	const struct job *k;

	TAILQ_FOREACH(k, &d->jobs, link)
		if (k != j && k->g == j->g && !k->parked.bytes)
			return &k->kv;
	return NULL;
}

size_t unpark_needs(const struct decode *d, const struct job *j)
{
	return kv_parked_blocks(&j->parked, sibling(d, j) != NULL);
}

bool unpark(struct decode *d, struct job *j)
{
	return kv_seq_unpark(&j->kv, d->w->pool, &j->parked, sibling(d, j), j->g->common);
}

/* k parked, as j is or would be, with what it does not share with others of its kind yet. */
static bool fork_parked(struct decode *d, const struct job *j, struct job *k)
{
	const unsigned char *from = j->parked.bytes; /* of all its blocks */
	size_t skip = common_blocks(j->g), block = d->w->pool->block_bytes;
	struct group *g = j->g;

	if (skip && !g->common)
		g->common = from ? mem_copy(from, skip * block) : kv_seq_copy(&j->kv, d->w->pool, 0, skip);
	if (!g->stem)
		g->stem = from ? mem_copy(from + skip * block, block) : kv_seq_copy(&j->kv, d->w->pool, skip, 1);
	k->parked = (struct kv_parked){ .bytes = g->stem, .borrowed = true, .skip = skip, .blocks = skip + 1,
		.length = from ? j->parked.length : j->kv.length, .mtp = from ? j->parked.mtp : j->kv.mtp };
	return g->stem && (!skip || g->common);
}

struct job *fork_job(struct decode *d, const struct job *j, size_t choice)
{
	struct job *k = mem_calloc(1, sizeof(*k));

	if (!k)
		return NULL;
	k->g = j->g;
	k->choice = choice;
	k->state = JOB_READY;
	k->position = j->position;
	if ((!j->parked.bytes && kv_seq_fork(&k->kv, &j->kv, j->kv.length, d->w->pool)) || fork_parked(d, j, k))
		return k;
	free(k);
	return NULL;
}
