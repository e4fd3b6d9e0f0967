/*
 * What decode has to do with the store of KV blocks: prompts that are computed here find and leave blocks there as
 * ds-prefill's do; with --store-generated blocks are stored in which rows are decode's, under keys that say so, so that
 * the next turn of a dialogue finds them.
 *
 * Their chain goes on from the prompt's, whose KV frames say what keys their sender knows its blocks by; where those
 * are not what they are here (another model, layout or kernels, no --kv) nothing is stored.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "serve/decode_impl.h"

/* ---- prompts that are computed here ---- */

/* Blocks that it will need beyond those that it has. */
static size_t lacks(const struct job *j)
{
	size_t all = kv_blocks_for(j->at.count);

	return all > j->kv.count ? all - j->kv.count : 0;
}

/* Blocks are taken for what the store has of it if nobody waits for any, nor will soon. */
static bool room_for(const struct decode *d, struct job *j)
{
	size_t need = lacks(j);
	const struct job *k;

	TAILQ_FOREACH(k, &d->jobs, link) {
		if (k->parked.bytes)
			return false;
		if (k->state == JOB_PROMPT && k != j && k->kv.count)
			need += lacks(k);
		need += k->state == JOB_READY;
	}
	return kv_pool_available(d->w->pool) >= need &&
		kv_seq_reserve(&j->kv, d->w->pool, prompt_fetch_blocks(&j->at) * KV_BLOCK);
}

/* Somebody will give blocks back without j. */
static bool others_go_on(const struct decode *d, const struct job *j)
{
	const struct job *k;

	TAILQ_FOREACH(k, &d->jobs, link)
		if (k != j && (can_run(k) || (k->waits && !k->roomless_ns)))
			return true;
	return false;
}

/* The store has some of it, but there is no room: as long as others go on, it would have none to be computed in.  The
 * first of those who wait does so for --kv-timeout at most; the time is not the store's. */
static enum prompt_store wait_for_room(struct decode *d, struct job *j, bool *full)
{
	int64_t now = time_mono_ns();

	j->roomless_ns = j->roomless_ns ? j->roomless_ns : now;
	if (*full)
		return PROMPT_WAITS;
	j->first_ns = j->first_ns ? j->first_ns : now;
	if (!others_go_on(d, j) || now - j->first_ns >= d->w->store_timeout_ns) {
		j->roomless_ns = 0;
		prompt_no_fetch(&j->at);
		return PROMPT_READY;
	}
	kv_client_due(d->w->store, j->first_ns + d->w->store_timeout_ns);
	*full = true;
	return PROMPT_WAITS;
}

/* full: one before it waits for room. */
static int fetch(struct decode *d, struct job *j, bool *full, enum prompt_store *s, struct ds_err *err)
{
	if (!*full) {
		int rc = prompt_begin(d->w, &j->at, err);

		if (rc)
			return rc;
		if (room_for(d, j)) {
			if (j->roomless_ns && j->at.waits_ns)
				j->at.waits_ns += time_mono_ns() - j->roomless_ns;
			j->roomless_ns = 0;
			prompt_fetch(d->w, &j->at);
			*s = prompt_store(d->w, &j->at, true);
			return 0;
		}
		prompt_reset(d->w, &j->at);
	}
	*s = wait_for_room(d, j, full);
	return 0;
}

static int look(struct decode *d, struct job *j, bool *full, struct ds_err *err)
{
	enum prompt_store s = prompt_store(d->w, &j->at, true);
	int rc = s == PROMPT_FETCH ? fetch(d, j, full, &s, err) : 0;

	j->waits = s == PROMPT_WAITS;
	d->w->store_waits |= j->waits;
	return rc;
}

void store_look(struct decode *d)
{
	struct job *j, *next;
	bool full = false;
	struct ds_err why;

	if (!d->w->store)
		return;
	kv_client_rung(d->w->store);
	d->w->store_waits = false;
	for (j = TAILQ_FIRST(&d->jobs); j; j = next) {
		next = TAILQ_NEXT(j, link); /* its request has no other */
		if (j->state == JOB_PROMPT && look(d, j, &full, &why))
			group_fail(d, j->g, &why);
	}
	d->w->store_waits |= kv_client_holds(d->w->store); /* also what was given up just now */
}

int store_prompt(struct decode *d, struct job *j, struct ds_err *err)
{
	if (!d->w->store)
		return 0;
	if (engine_check(d->w->engine, err))
		return err->code;
	prompt_publish(d->w, &j->at);
	if (!d->w->generated || !j->at.decoded)
		return 0;
	free(j->g->decoded);
	j->g->decoded = mem_copy(j->at.decoded, j->at.count / KV_BLOCK + 1);
	j->g->traced = j->g->decoded != NULL;
	return 0;
}

/* ---- prompts that arrive ---- */

/* The last frame's keys depend on all before. */
static bool agrees(const struct decode *d, const struct group *g, const struct kv_block *k, size_t page)
{
	struct store_key *keys = mem_array(g->prompt / KV_BLOCK + 1, sizeof(*keys));
	struct kv_block mine = { 0 };

	if (keys)
		kv_say(d->w->store, &mine, page, g->decoded[page], keys,
			kv_keys(d->w->store, g->ids, g->prompt, g->decoded, keys));
	free(keys);
	return mine.parent[0] && strcmp(mine.parent, k->parent) == 0 && strcmp(mine.key, k->key) == 0;
}

/* Once. */
static void not_stored(struct decode *d, const char *why)
{
	if (!d->told_not_stored)
		log_msg(LOG_WARN, "--store-generated stores nothing: %s", why);
	d->told_not_stored = true;
}

void store_heard(struct decode *d, struct group *g, const struct kv_block *k)
{
	size_t page = g->arrived, pages = kv_blocks_for(g->prompt);

	if (!d->w->generated)
		return;
	if (!page) {
		g->decoded = mem_array(g->prompt / KV_BLOCK + 1, 1);
		g->traced = g->decoded != NULL;
		if (g->traced)
			memset(g->decoded, KV_BLOCK, g->prompt / KV_BLOCK + 1);
	}
	if (!page && !k->parent[0])
		not_stored(d, "prompts come without their keys: give --kv to ds-prefill, too");
	g->traced &= k->parent[0] && (!k->has_decoded || (k->decoded <= KV_BLOCK + 1));
	if (!g->traced)
		return;
	if (k->has_decoded)
		g->decoded[page] = (uint8_t)k->decoded;
	if (page + 1 == pages)
		g->traced = agrees(d, g, k, page);
	if (page + 1 == pages && !g->traced)
		not_stored(d, "prompts come with other keys: --kv-block, --kv-dtype, --mtp, the model or the kernels "
			"of ds-prefill are others");
}

/* ---- blocks with generated tokens ---- */

static bool add_id(struct made *m, uint32_t id)
{
	uint32_t *p = mem_more(m->ids, &m->cap, m->n, sizeof(*m->ids));

	if (!p)
		return false;
	m->ids = p;
	m->ids[m->n++] = id;
	return true;
}

/* The rows that the prompt has in its last block are prefill's, to the first of decode's. */
static bool pure_tail(const struct decode *d, const struct group *g, size_t block)
{
	for (size_t n = block * kv_client_pages(d->w->store); n < kv_blocks_for(g->prompt); n++)
		if (n < g->prompt / KV_BLOCK + 1 && g->decoded[n] != KV_BLOCK)
			return false;
	return true;
}

void store_begin_made(struct decode *d, struct job *j)
{
	size_t tokens, known = 0;
	struct group *g = j->g;
	struct made *m = &j->made;
	struct store_key *keys;

	if (!d->w->generated || !g->traced)
		return;
	tokens = kv_client_pages(d->w->store) * KV_BLOCK;
	m->block = (g->prompt - d->w->mtp) / tokens;
	keys = mem_array(g->prompt / tokens + 1, sizeof(*keys));
	if (keys)
		known = kv_keys(d->w->store, g->ids, g->prompt, g->decoded, keys);
	m->on = keys && known == m->block && pure_tail(d, g, m->block);
	if (m->on)
		m->parent = known ? keys[known - 1] : kv_root(d->w->store);
	for (size_t i = m->block * tokens; i < g->prompt && m->on; i++)
		m->on = add_id(m, g->ids[i]);
	free(keys);
}

/* The MTP layer's entries come later than the rows, the more so without drafts.  What is stored is not to depend on
 * that: a block near the end of an answer is not, even if its entries should be there. */
enum { MTP_LAG = MTP_PENDING + 2 * MTP_MOST };

/* Its next block is complete: rows, with MTP entries, and the tokens that those depend on. */
static bool complete(const struct decode *d, const struct job *j, size_t tokens)
{
	size_t end = (j->made.block + 1) * tokens;

	if (!j->made.on || j->made.n < tokens + d->w->mtp || j->kv.length < end)
		return false;
	return !d->w->mtp || (j->kv.length >= end + MTP_LAG && j->kv.mtp >= end);
}

static uint64_t first_made(const struct group *g, size_t block, size_t tokens)
{
	if (g->prompt <= block * tokens)
		return 0;
	return g->prompt < (block + 1) * tokens ? g->prompt - block * tokens : tokens + 1;
}

void store_made(struct decode *d, struct job *j, uint32_t token)
{
	struct made *m = &j->made;
	size_t pages, tokens;
	struct ds_err err;

	if (!m->on)
		return;
	m->on = add_id(m, token);
	pages = kv_client_pages(d->w->store);
	tokens = pages * KV_BLOCK;
	while (complete(d, j, tokens)) {
		struct block_id id = { .parent = m->parent, .ids = m->ids, .first = m->block * tokens,
			.decoded = first_made(j->g, m->block, tokens) };

		if (engine_check(d->w->engine, &err)) /* the end of the answer will say so */
			return;
		m->parent = kv_put(d->w->store, &id, j->kv.pages + m->block * pages);
		m->block++;
		m->n -= tokens;
		memmove(m->ids, m->ids + tokens, m->n * sizeof(*m->ids));
	}
}
