/* What arrives: requests, their KV and first tokens, cancels; and what the stage asks of the decode stage. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "serve/decode_impl.h"
#include "serve/ranked.h"

static bool arriving(const struct group *g)
{
	return g->lead && g->lead->state == JOB_ARRIVING;
}

static size_t arriving_from(const struct decode *d, const struct source *src)
{
	const struct group *g;
	size_t n = 0;

	TAILQ_FOREACH(g, &d->groups, link)
		n += g->src == src && arriving(g);
	return n;
}

static bool on_incomplete(void *ctx, struct source *src)
{
	return arriving_from(ctx, src) > 0;
}

/* MTP entries cannot be made up for later. */
static int on_hello(void *ctx, struct source *src, const struct hello *h, struct ds_err *err)
{
	const struct decode *d = ctx;

	if (h->kv.type == DT_NONE || h->mtp || !d->w->mtp)
		return 0;
	return err_set(err, DS_PROTO,
		"'%s' hands over KV with 0 MTP layers, here it is 1: give --mtp to ds-prefill, too",
		source_name(src));
}

/* What a request needs besides its frame. */
static int furnish(struct decode *d, struct group *g, const uint32_t *ids, struct ds_err *err)
{
	const struct tokenizer *t;
	int rc = 0;

	g->ids = mem_array(g->prompt, sizeof(*g->ids));
	g->first = mem_array(g->request.n, sizeof(*g->first));
	if (!g->ids || !g->first)
		return err_nomem(err, g->prompt * sizeof(*g->ids), "a prompt");
	memcpy(g->ids, ids, g->prompt * sizeof(*g->ids));
	if (g->request.stop_count)
		rc = work_tokenizer(d->w, &t, err);
	if (!rc && g->request.stop_count)
		rc = stop_new(&g->stop, g->request.stops, g->request.stop_count, err);
	return rc;
}

static int add_group(struct decode *d, struct source *src, const struct frame *f, struct ds_err *err)
{
	struct group *g = mem_calloc(1, sizeof(*g));
	struct job *j = mem_calloc(1, sizeof(*j));
	const uint32_t *ids;
	int rc = g && j ? work_request(d->w, f, &g->request, &ids, &g->prompt, err)
		: err_nomem(err, sizeof(*g), "a request");

	if (rc) {
		free(g);
		free(j);
		return rc;
	}
	g->src = src;
	g->stream = f->stream;
	g->lead = j;
	g->open = 1;
	g->done.usage.prompt = g->done.usage.miss = g->prompt; /* as far as it is known */
	j->g = g;
	TAILQ_INSERT_TAIL(&d->groups, g, link);
	TAILQ_INSERT_TAIL(&d->jobs, j, link);
	d->held++;
	source_hold(src);
	profile_request(d->w->profile, g->stream, g->request.id, g->prompt);
	rc = furnish(d, g, ids, err);
	if (!rc && source_hello(src)->kv.type == DT_NONE) { /* a stream without KV: the prompt is computed here */
		j->state = JOB_PROMPT;
		j->at = (struct prompt){ .ids = g->ids, .count = g->prompt, .kv = &j->kv };
		prompt_ask(d->w, &j->at);
	}
	if (rc)
		group_end(d, g);
	return rc;
}

static int take_request(struct decode *d, struct source *src, struct frame *f, struct ds_err *err)
{
	char id[REQUEST_ID_MAX + 1];
	struct ds_err why;

	if (d->draining) {
		err_set(&why, DS_TEMP, "draining: no new requests are taken");
		return stage_error(src, f->stream, work_name(f, id), true, &why);
	}
	if (group_find(d, src, f->stream))
		return source_twice(src, f, err);
	if (arriving_from(d, src) >= d->o.max_batch) {
		err_set(&why, DS_TEMP, "%zu requests of this stream have begun to arrive and none is complete",
			d->o.max_batch);
		return stage_error(src, f->stream, work_name(f, id), true, &why);
	}
	if (add_group(d, src, f, &why))
		return stage_error(src, f->stream, work_name(f, id), why.code == DS_OS, &why);
	return 0;
}

/* Checks a KV frame against what its request still needs.  Blocks with MTP entries that are of no use here are as good:
 * those come last. */
static int check_kv(const struct decode *d, const struct group *g, const struct frame *f, struct kv_block *k,
	struct ds_err *err)
{
	const struct kv_pool *pool = d->w->pool;
	size_t want = g->prompt - g->arrived * KV_BLOCK, layer = pool->block_bytes / pool->layers;
	struct frame_tensor t;
	int rc = kv_block_get(f, k, &t, err);

	if (rc)
		return rc;
	want = want < KV_BLOCK ? want : KV_BLOCK;
	if (!arriving(g) || g->arrived >= kv_blocks_for(g->prompt) || k->first != g->arrived * KV_BLOCK ||
	    k->count != want)
		return err_set(err, DS_DATA, "request '%s': KV of tokens %llu to %llu is out of order", g->request.id,
			(unsigned long long)k->first, (unsigned long long)(k->first + k->count));
	if (t.type != pool->type || (t.shape[0] != pool->layers && (d->w->mtp || t.shape[0] != pool->layers + 1)) ||
	    t.shape[1] != KV_BLOCK || t.shape[2] != pool->dim || t.offset || t.nbytes != t.shape[0] * layer ||
	    f->data_len != t.nbytes)
		return err_set(err, DS_PROTO,
			"request '%s': KV block is %s [%llu, %llu, %llu], this model's is %s [%zu, %d, %zu]",
			g->request.id, dtype_name(t.type), (unsigned long long)t.shape[0],
				(unsigned long long)t.shape[1],
			(unsigned long long)t.shape[2], dtype_name(pool->type), pool->layers, KV_BLOCK, pool->dim);
	return 0;
}

static int on_head(void *ctx, struct source *src, struct frame *f, void **dst, struct ds_err *err)
{
	struct decode *d = ctx;
	struct kv_block k;
	struct group *g;

	(void)err;
	g = group_find(d, src, f->stream);
	/* Full: nothing more is read from here than what belongs to requests that are held, cancels among them.  A
	 * source without any may have one. */
	if (f->type == FRAME_REQUEST && d->held >= d->o.max_batch && group_any(d, src) && !arriving_from(d, src))
		held_pause(&d->paused, src);
	if (f->type != FRAME_KV || !g)
		return 0;
	g->incoming = NULL;
	if (check_kv(d, g, f, &k, &(struct ds_err){ 0 })) /* on_frame will say why */
		return 0;
	if (!has_home(d, g)) {
		if (g != d->pressed)
			held_pause(&d->full, src);
	} else if (f->data_len == d->w->pool->block_bytes) { /* else it goes through the stage's memory */
		g->incoming = next_block(d, g);
	}
	*dst = g->incoming;
	return 0;
}

static int take_kv(struct decode *d, struct source *src, struct frame *f)
{
	struct group *g = group_find(d, src, f->stream);
	struct kv_block k;
	struct ds_err why;
	void *home;

	if (!g)
		return 0; /* its request was refused or cancelled: the rest of it is read and dropped */
	if (check_kv(d, g, f, &k, &why) || frame_check_payload(f, &why))
		return group_fail(d, g, &why);
	if (!g->incoming || g->incoming != f->data) {
		bool fails = d->give_up == src && g != d->pressed && !has_home(d, g);

		d->give_up = d->give_up == src ? NULL : d->give_up;
		if (fails) {
			err_set(&why, DS_TEMP,
				"request '%s': no memory for its KV, which '%s' sends mixed with that of others: "
				"send one request after the other, or raise --kv-memory",
				g->request.id, source_name(src));
			return group_fail(d, g, &why);
		}
		home = next_block(d, g);
		if (!home) {
			err_nomem(&why, d->w->pool->block_bytes, "a KV block");
			return group_fail(d, g, &why);
		}
		memcpy(home, f->data, d->w->pool->block_bytes);
	}
	g->incoming = NULL;
	store_heard(d, g, &k);
	g->arrived++;
	return 0;
}

static int check_prefilled(const struct decode *d, const struct group *g, const struct prefilled *p,
	struct ds_err *err)
{
	bool known = true;

	for (size_t i = 0; i < p->n; i++)
		known &= p->first[i].id < d->w->model->config.vocab;
	if (arriving(g) && g->arrived == kv_blocks_for(g->prompt) && p->position == g->prompt && known)
		return 0;
	return err_set(err, DS_DATA,
		"request '%s': first token %u at %llu does not follow %zu prompt tokens with %zu KV blocks",
		g->request.id, p->first[0].id, (unsigned long long)p->position, g->prompt, g->arrived);
}

static int take_prefilled(struct decode *d, struct source *src, struct frame *f)
{
	struct group *g = group_find(d, src, f->stream);
	const float *hidden = NULL;
	struct prefilled p;
	struct ds_err why;
	struct job *j;

	if (!g)
		return 0;
	if (prefilled_get(f, g->first, g->request.n, &p, &why) || check_prefilled(d, g, &p, &why) ||
	    (d->w->mtp && (prefilled_hidden(f, d->w->model->config.hidden, &hidden, &why) ||
				  frame_check_payload(f, &why))))
		return group_fail(d, g, &why);
	j = g->lead;
	j->kv.length = j->parked.bytes ? 0 : g->prompt;
	j->kv.mtp = j->parked.bytes ? 0 : g->prompt - 1;
	j->parked.length = g->prompt;
	j->parked.mtp = g->prompt - 1;
	g->done.usage = p.usage;
	g->done.prefill_ns = p.prefill_ns;
	group_start(d, j, hidden);
	return 0;
}

static int on_frame(void *ctx, struct source *src, struct frame *f, struct ds_err *err)
{
	struct decode *d = ctx;
	struct group *g;
	bool taken = false;
	int rc = work_whole(f, src, err);

	if (!rc)
		rc = ranked_frame(d->w, src, f, &taken, err);
	if (rc || taken)
		return rc;
	switch (f->type) {
	case FRAME_REQUEST:
		rc = take_request(d, src, f, err);
		break;
	case FRAME_KV:
		rc = take_kv(d, src, f);
		break;
	case FRAME_PREFILLED:
		rc = take_prefilled(d, src, f);
		break;
	case FRAME_CANCEL:
		g = group_find(d, src, f->stream);
		if (g)
			group_done(d, g, "cancelled");
		return 0;
	case FRAME_ERROR:
	case FRAME_DONE: /* it failed or was cancelled upstream: the rest of it will not come */
		g = group_find(d, src, f->stream);
		if (g)
			group_end(d, g);
		return work_other(src, f, err);
	default:
		return work_other(src, f, err);
	}
	return rc;
}

static void on_gone(void *ctx, struct source *src, bool complete)
{
	struct decode *d = ctx;
	struct group *g = TAILQ_FIRST(&d->groups), *next;

	ranked_gone(d->w, src);
	held_forget(&d->paused, src);
	held_forget(&d->full, src);
	d->give_up = d->give_up == src ? NULL : d->give_up;
	for (; g && !complete; g = next) {
		next = TAILQ_NEXT(g, link);
		if (g->src == src)
			group_end(d, g);
	}
}

static int on_step(void *ctx, bool *busy, struct ds_err *err)
{
	int rc = decode_step(ctx, busy, err);

	if (!rc)
		let_in(ctx);
	return rc;
}

static void on_drain(void *ctx)
{
	struct decode *d = ctx;

	d->draining = true;
	work_drain(d->w);
}

static void on_state(void *ctx)
{
	const struct decode *d = ctx;
	size_t arrive = 0, parked = 0, prompts = 0, running = 0;
	const struct job *j;
	struct buf b = { 0 };
	struct jw w;

	TAILQ_FOREACH(j, &d->jobs, link) {
		arrive += j->state == JOB_ARRIVING;
		prompts += j->state == JOB_PROMPT;
		running += j->state == JOB_READY;
		parked += j->parked.bytes != NULL;
	}
	jw_init(&w, &b);
	jw_obj(&w);
	jw_key(&w, "requests");
	jw_uint(&w, d->held);
	jw_key(&w, "arriving");
	jw_uint(&w, arrive);
	jw_key(&w, "prompts");
	jw_uint(&w, prompts);
	jw_key(&w, "running");
	jw_uint(&w, running);
	jw_key(&w, "parked");
	jw_uint(&w, parked);
	jw_key(&w, "kv_blocks_outside");
	jw_uint(&w, outside(d));
	jw_key(&w, "unread");
	jw_uint(&w, d->paused.n + d->full.n);
	work_state(d->w, &w);
	jw_obj_end(&w);
	work_print_state(&b);
	buf_free(&b);
}

const struct stage_ops decode_ops = {
	.head = on_head,
	.frame = on_frame,
	.gone = on_gone,
	.hello = on_hello,
	.incomplete = on_incomplete,
	.step = on_step,
	.bell = work_on_bell,
	.awaited = work_on_awaited,
	.waits = work_on_waits,
	.aside = work_on_aside,
	.ending = work_on_ending,
	.drain = on_drain,
	.state = on_state,
};
