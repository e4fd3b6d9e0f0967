/* Prompts through the engine, and their frames on their way out. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/time.h"
#include "serve/prefill_impl.h"
#include "serve/ranked.h"

/* ---- handing over ---- */

static int send_kv(struct prefill *p, struct job *j, size_t block)
{
	const struct kv_pool *pool = p->w->pool;
	struct kv_block k = { .first = block * KV_BLOCK, .count = j->prompt.count - block * KV_BLOCK };
	struct iovec iov = { j->kv.pages[block], pool->block_bytes };

	if (k.count > KV_BLOCK)
		k.count = KV_BLOCK;
	/* Rows past the prompt's end hold whatever an earlier owner left: they never leave the process.  Nor does the
	 * last MTP entry, which is still to be made. */
	for (size_t l = 0; k.first + k.count == j->prompt.count && l < pool->layers; l++) {
		size_t row = pool->dim * dtype_size(pool->type);
		size_t rows = (size_t)k.count - (l == p->w->model->config.layers);

		memset((unsigned char *)iov.iov_base + (l * KV_BLOCK + rows) * row, 0, (KV_BLOCK - rows) * row);
	}
	meta_reset(p->meta);
	if (j->prompt.keys)
		kv_say(p->w->store, &k, block, j->prompt.decoded[block], j->prompt.keys, j->prompt.key_count);
	kv_block_put(p->meta, &k, pool->type, pool->layers, KV_BLOCK, pool->dim);
	return stage_send(j->src, FRAME_KV, j->frame.stream, p->meta, &iov, 1, true);
}

static int send_prefilled(struct prefill *p, struct job *j)
{
	size_t n = p->w->model->config.hidden;
	struct iovec iov = { j->prompt.hidden, n * sizeof(float) };

	meta_reset(p->meta);
	prefilled_put(p->meta, &j->result);
	if (!j->prompt.hidden)
		return stage_send(j->src, FRAME_PREFILLED, j->frame.stream, p->meta, NULL, 0, false);
	prefilled_put_hidden(p->meta, n);
	return stage_send(j->src, FRAME_PREFILLED, j->frame.stream, p->meta, &iov, 1, true);
}

/* Sends what the output takes now; true when all is sent. */
static bool send_job(struct prefill *p, struct job *j)
{
	size_t blocks = kv_blocks_for(j->prompt.count);

	while (j->sent < blocks + 2) {
		if (source_blocked(j->src))
			return false;
		if (j->sent == 0) {
			stage_forward(j->src, &j->frame);
		} else if (j->sent <= blocks) {
			send_kv(p, j, j->sent - 1);
		} else {
			send_prefilled(p, j);
		}
		j->sent++;
	}
	if (j->cancelled)
		stage_send(j->src, FRAME_CANCEL, j->frame.stream, NULL, NULL, 0, false);
	return true;
}

/* In order for each source: a job waits while an earlier one of its source is unsent. */
static void send_finished(struct prefill *p)
{
	struct job *j = TAILQ_FIRST(&p->sending), *next, *k;

	for (; j; j = next) {
		next = TAILQ_NEXT(j, link);
		TAILQ_FOREACH(k, &p->sending, link)
			if (k->src == j->src)
				break;
		if (k != j || !send_job(p, j))
			continue;
		TAILQ_REMOVE(&p->sending, j, link);
		source_release(j->src);
		prefill_job_free(p, j);
	}
}

/* ---- computing ---- */

static void fail(struct prefill *p, struct job *j, struct job_list *list, const struct ds_err *why)
{
	TAILQ_REMOVE(list, j, link);
	stage_error(j->src, j->frame.stream, j->request.id, why->code == DS_OS, why);
	source_release(j->src);
	prefill_job_free(p, j);
}

static int begin(struct prefill *p, struct job *j, struct ds_err *err)
{
	j->result.n = j->request.n;
	if (!j->result.first)
		j->result.first = mem_array(j->request.n, sizeof(*j->result.first));
	if (!j->result.first)
		return err_nomem(err, j->request.n * sizeof(*j->result.first), "first tokens");
	return prompt_begin(p->w, &j->prompt, err);
}

/* Room in the next step for one more request. */
static bool step_has_room(const struct prefill *p)
{
	const struct job *j;
	size_t rows = 0, n = 0;

	TAILQ_FOREACH(j, &p->active, link)
		if (!source_blocked(j->src)) {
			size_t left = prompt_left(&j->prompt);

			rows += left < p->chunk ? left : p->chunk;
			n++;
		}
	return rows < p->w->max_rows && n < p->w->max_segs;
}

/* KV memory for the whole prompt, or none; full: those before it wait for that, or it does now. */
static bool reserve(struct prefill *p, struct job *j, bool *full, struct ds_err *err)
{
	size_t need = kv_blocks_for(j->prompt.count);

	err->code = 0;
	if (j->kv.count >= need)
		return true;
	*full |= kv_pool_available(p->w->pool) < need - j->kv.count;
	if (!*full && begin(p, j, err))
		return false;
	if (!*full && kv_seq_reserve(&j->kv, p->w->pool, j->prompt.count))
		return true;
	*full = true;
	prompt_reset(p->w, &j->prompt);
	return false;
}

/* What a waiting job needs before it is computed: what the store has of it, memory, a step with room.  True: all is
 * there. */
static bool prepare(struct prefill *p, struct job *j, bool turn, bool *full, struct ds_err *err)
{
	enum prompt_store s = prompt_store(p->w, &j->prompt, turn);

	err->code = 0;
	if (s == PROMPT_FETCH && reserve(p, j, full, err)) {
		prompt_fetch(p->w, &j->prompt);
		s = prompt_store(p->w, &j->prompt, turn);
	}
	p->w->store_waits |= s == PROMPT_WAITS;
	if (s != PROMPT_READY || !turn || !reserve(p, j, full, err))
		return false;
	/* What came to the cache of prefixes since its memory was reserved. */
	return !p->w->store || prompt_begin(p->w, &j->prompt, err) == 0;
}

/* Waiting requests become active in order, as KV memory for the whole prompt is there, and not before a step has room
 * for them: what is computed meanwhile may be what they begin with.  Who waits for the store does not hold up others;
 * what it has is fetched ahead. */
static void activate(struct prefill *p)
{
	struct job *j = TAILQ_FIRST(&p->waiting), *next;
	bool full = false, turn = true;
	size_t ahead = 0;
	struct ds_err why;

	p->w->store_waits = false;
	for (; j && (turn = turn && step_has_room(p), turn || (p->w->store && ahead < AHEAD)); j = next) {
		next = TAILQ_NEXT(j, link);
		if (prepare(p, j, turn, &full, &why)) {
			j->began_ns = time_mono_ns();
			TAILQ_REMOVE(&p->waiting, j, link);
			TAILQ_INSERT_TAIL(&p->active, j, link);
		} else if (why.code) {
			fail(p, j, &p->waiting, &why);
		} else {
			ahead++;
			if (!p->w->store)
				return;
		}
	}
	p->w->store_waits |= p->w->store && kv_client_holds(p->w->store); /* also what was given up just now */
}

static size_t fill_step(struct prefill *p)
{
	struct work *w = p->w;
	size_t rows = 0, n = 0;
	struct job *j;

	TAILQ_FOREACH(j, &p->active, link) {
		size_t take = prompt_left(&j->prompt);

		if (n == w->max_segs || rows == w->max_rows)
			break;
		if (source_blocked(j->src))
			continue;
		take = take < p->chunk ? take : p->chunk;
		take = take < w->max_rows - rows ? take : w->max_rows - rows;
		p->prompts[n] = &j->prompt;
		w->segs[n++] = prompt_segment(&j->prompt, take, j->frame.stream, j->request.id);
		rows += take;
	}
	return n;
}

static void finish(struct prefill *p, struct job *j)
{
	struct prefilled *r = &j->result;

	r->position = j->prompt.count;
	r->usage = prompt_usage(&j->prompt);
	r->prefill_ns = (uint64_t)(time_mono_ns() - j->began_ns);
	prompt_publish(p->w, &j->prompt);
	TAILQ_REMOVE(&p->active, j, link);
	TAILQ_INSERT_TAIL(&p->sending, j, link);
}

/* First tokens of the prompts that are done, then what else the step is needed for, then they leave. */
static int finish_step(struct prefill *p, size_t n, struct ds_err *err)
{
	struct job *j = TAILQ_FIRST(&p->active), *next;
	struct ds_err why;
	int rc;

	for (size_t i = 0; j && i < n; j = next) {
		next = TAILQ_NEXT(j, link);
		if (p->prompts[i] != &j->prompt)
			continue;
		if (p->w->segs[i].want_logits &&
		    prompt_first(p->w, &j->request, &j->prompt, &p->w->segs[i], j->result.first, &why)) {
			p->prompts[i] = NULL;
			fail(p, j, &p->active, &why);
		}
		i++;
	}
	rc = prompt_stepped(p->w, p->w->segs, p->prompts, n, err);
	for (j = TAILQ_FIRST(&p->active); j && !rc; j = next) {
		next = TAILQ_NEXT(j, link);
		if (prompt_left(&j->prompt))
			continue;
		rc = engine_check(p->w->engine, err);
		if (!rc)
			finish(p, j);
	}
	return rc;
}

int prefill_step(struct prefill *p, bool *busy, struct ds_err *err)
{
	size_t n;
	int rc;

	if (p->w->store)
		kv_client_rung(p->w->store);
	send_finished(p);
	activate(p);
	n = fill_step(p);
	if (n) {
		rc = engine_step(p->w->engine, p->w->segs, n, err);
		if (!rc)
			rc = work_dumped(p->w, err);
		if (rc)
			return rc;
		rc = finish_step(p, n, err);
		if (rc)
			return rc;
		send_finished(p);
	}
	*busy = n > 0;
	return ranked_step(p->w, busy, err);
}
