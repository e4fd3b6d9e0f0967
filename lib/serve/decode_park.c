/*
 * KV of choices in ordinary memory and back.  The blocks of a prompt that its choices share are copied once for all of
 * them: what a request takes there is its prompt once and each choice's own tokens, however many choices it has.
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

/* k parked as j is, or as j would be. */
static bool fork_parked(struct decode *d, const struct job *j, struct job *k)
{
	size_t skip = common_blocks(j->g), block = d->w->pool->block_bytes;
	bool parked = j->parked.bytes != NULL;

	k->parked = parked ? j->parked : (struct kv_parked){ .blocks = kv_blocks_for(j->kv.length),
		.length = j->kv.length, .mtp = j->kv.mtp };
	k->parked.skip = skip;
	if (!parked) {
		if (skip && !j->g->common)
			j->g->common = kv_seq_copy(&j->kv, d->w->pool, 0, skip);
		k->parked.bytes = kv_seq_copy(&j->kv, d->w->pool, skip, k->parked.blocks - skip);
	} else {
		if (skip && !j->g->common)
			j->g->common = mem_copy(j->parked.bytes, skip * block);
		k->parked.bytes = mem_copy(j->parked.bytes + skip * block, (k->parked.blocks - skip) * block);
	}
	return k->parked.bytes && (!skip || j->g->common);
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
	free(k->parked.bytes);
	free(k);
	return NULL;
}
