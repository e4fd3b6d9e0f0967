#include "serve/decode.h"

#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/time.h"
#include "serve/hold.h"

enum job_state {
	JOB_ARRIVING, /* its KV blocks are coming in */
	JOB_READY,    /* complete; runs, or waits parked */
};

struct job {
	TAILQ_ENTRY(job) link;    /* by age */
	struct source *src;
	uint64_t stream;
	struct request request;
	size_t prompt;            /* tokens */
	enum job_state state;
	size_t arrived;           /* KV blocks complete */
	void *incoming;           /* where the block being read goes, NULL: the stage's memory */
	struct kv_seq kv;
	struct kv_parked parked;  /* bytes set: the KV lies there, not in kv */
	uint32_t token;           /* the last one, to be fed next */
	uint64_t position;        /* of that token */
	uint64_t index;           /* of the next token to be sent */
	struct usage usage;
	struct sample_history *history; /* NULL: nothing is penalised */
	uint64_t prefill_ns;
	int64_t began_ns;
};

TAILQ_HEAD(job_list, job);

struct decode {
	struct work *w;
	size_t max_batch;
	struct job_list jobs;
	size_t held;
	struct held_sources paused;
	struct meta_builder *meta;
	struct job **stepping;    /* [max_batch] whose segments the step has */
	bool draining;
};

int decode_new(struct decode **out, struct work *w, size_t max_batch, struct ds_err *err)
{
	struct decode *d = mem_calloc(1, sizeof(*d));

	if (d) {
		TAILQ_INIT(&d->jobs);
		d->w = w;
		d->max_batch = max_batch;
		d->meta = meta_new();
		d->stepping = mem_calloc(max_batch, sizeof(*d->stepping));
	}
	if (!d || !d->meta || !d->stepping) {
		decode_free(d);
		return err_nomem(err, sizeof(*d), "decode");
	}
	*out = d;
	return 0;
}

static bool has_jobs(const struct decode *d, const struct source *src)
{
	const struct job *j;

	TAILQ_FOREACH(j, &d->jobs, link)
		if (j->src == src)
			return true;
	return false;
}

static void job_free(struct decode *d, struct job *j)
{
	struct source *src = j->src;

	profile_request_end(d->w->profile, j->stream, j->request.id);
	TAILQ_REMOVE(&d->jobs, j, link);
	kv_seq_clear(&j->kv, d->w->pool);
	free(j->parked.bytes);
	sample_history_free(j->history);
	free(j);
	if (--d->held < d->max_batch)
		held_resume(&d->paused);
	else if (!has_jobs(d, src))
		held_release(&d->paused, src); /* each may have one, however full it is */
}

void decode_free(struct decode *d)
{
	if (!d)
		return;
	d->paused.n = 0; /* the sources are gone */
	while (!TAILQ_EMPTY(&d->jobs))
		job_free(d, TAILQ_FIRST(&d->jobs));
	held_free(&d->paused);
	if (d->meta)
		meta_free(d->meta);
	free(d->stepping);
	free(d);
}

static struct job *find(struct decode *d, const struct source *src, uint64_t stream)
{
	struct job *j;

	TAILQ_FOREACH(j, &d->jobs, link)
		if (j->src == src && j->stream == stream)
			return j;
	return NULL;
}

static void job_end(struct decode *d, struct job *j)
{
	source_release(j->src);
	job_free(d, j);
}

static int job_fail(struct decode *d, struct job *j, const struct ds_err *why)
{
	struct source *src = j->src;
	uint64_t stream = j->stream;
	char id[sizeof(j->request.id)];

	memcpy(id, j->request.id, sizeof(id));
	job_end(d, j);
	return stage_error(src, stream, id, false, why);
}

/* ---- tokens ---- */

static const char *finished(const struct decode *d, const struct job *j)
{
	const struct config *c = &d->w->model->config;

	for (size_t i = 0; i < c->eos_count && !j->request.ignore_eos; i++)
		if (j->token == c->eos[i])
			return "stop";
	for (size_t i = 0; i < j->request.stop_id_count; i++)
		if (j->token == j->request.stop_ids[i])
			return "stop";
	if (j->request.max_tokens && j->index >= j->request.max_tokens)
		return "length";
	return j->position >= c->max_positions ? "length" : NULL;
}

static void send_done(struct decode *d, struct job *j, const char *reason)
{
	struct done done = { .usage = j->usage, .prefill_ns = j->prefill_ns };

	snprintf(done.id, sizeof(done.id), "%s", j->request.id);
	snprintf(done.reason, sizeof(done.reason), "%s", reason);
	done.usage.completion = j->index;
	done.decode_ns = (uint64_t)(time_mono_ns() - j->began_ns);
	meta_reset(d->meta);
	done_put(d->meta, &done);
	stage_send(j->src, FRAME_DONE, j->stream, d->meta, NULL, 0, false);
	job_end(d, j);
}

/* Sends the token at j->position; ends the job where it was the last one. */
static void emit(struct decode *d, struct job *j, const struct sampled *s)
{
	struct token t = { .index = j->index++, .t = *s, .has_logprob = j->request.sampling.logprobs,
		.t_ns = (uint64_t)time_wall_ns() };
	const char *reason;
	struct ds_err why;

	j->token = s->id;
	if (j->history && sample_history_add(j->history, s->id, &why)) {
		job_fail(d, j, &why);
		return;
	}
	reason = finished(d, j);
	snprintf(t.reason, sizeof(t.reason), "%s", reason ? reason : "");
	meta_reset(d->meta);
	token_put(d->meta, &t);
	stage_send(j->src, FRAME_TOKEN, j->stream, d->meta, NULL, 0, false);
	if (reason)
		send_done(d, j, reason);
}

/* ---- what arrives ---- */

static size_t arriving_from(const struct decode *d, const struct source *src)
{
	const struct job *j;
	size_t n = 0;

	TAILQ_FOREACH(j, &d->jobs, link)
		n += j->src == src && j->state == JOB_ARRIVING;
	return n;
}

static bool on_incomplete(void *ctx, struct source *src)
{
	return arriving_from(ctx, src) > 0;
}

static int refuse(const struct request *r, struct ds_err *err)
{
	if (r->n == 1 && !r->stop_count)
		return 0;
	return err_set(err, DS_DATA, "request '%s': '%s' is not supported by this version", r->id,
		r->stop_count ? "stop" : "n");
}

static int take_request(struct decode *d, struct source *src, struct frame *f, struct ds_err *err)
{
	char id[REQUEST_ID_MAX + 1];
	struct ds_err why;
	const uint32_t *ids;
	struct job *j;

	if (d->draining) {
		err_set(&why, DS_TEMP, "draining: no new requests are taken");
		return stage_error(src, f->stream, work_name(f, id), true, &why);
	}
	if (find(d, src, f->stream))
		return work_twice(f, src, err);
	if (arriving_from(d, src) >= d->max_batch) {
		err_set(&why, DS_TEMP, "%zu requests of this stream have begun to arrive and none is complete",
			d->max_batch);
		return stage_error(src, f->stream, work_name(f, id), true, &why);
	}
	j = mem_calloc(1, sizeof(*j));
	if (!j) {
		err_nomem(&why, sizeof(*j), "a request");
		return stage_error(src, f->stream, work_name(f, id), true, &why);
	}
	if (work_request(d->w, f, &j->request, &ids, &j->prompt, &why) || refuse(&j->request, &why) ||
	    work_history(&j->request, ids, j->prompt, &j->history, &why)) {
		free(j);
		return stage_error(src, f->stream, work_name(f, id), false, &why);
	}
	j->src = src;
	j->stream = f->stream;
	TAILQ_INSERT_TAIL(&d->jobs, j, link);
	d->held++;
	profile_request(d->w->profile, j->stream, j->request.id, j->prompt);
	source_hold(src);
	return 0;
}

/* True where a job older than j has its KV parked: newcomers do not take the blocks it waits for. */
static bool others_wait(const struct decode *d, const struct job *j)
{
	const struct job *k;

	TAILQ_FOREACH(k, &d->jobs, link) {
		if (k == j)
			return false;
		if (k->parked.bytes)
			return true;
	}
	return false;
}

/* Memory for the next block of an arriving job: a block of the pool, else ordinary memory. */
static void *next_block(struct decode *d, struct job *j)
{
	size_t bytes = d->w->pool->block_bytes;
	unsigned char *p;

	if (!j->parked.bytes && !others_wait(d, j) &&
	    kv_seq_reserve(&j->kv, d->w->pool, (j->arrived + 1) * KV_BLOCK))
		return j->kv.pages[j->arrived];
	if (!j->parked.bytes) {
		j->kv.length = j->arrived * KV_BLOCK;
		if (!kv_seq_park(&j->kv, d->w->pool, &j->parked))
			return NULL;
	}
	p = mem_realloc(j->parked.bytes, j->arrived + 1, bytes);
	if (!p)
		return NULL;
	j->parked.bytes = p;
	return p + j->arrived * bytes;
}

/* Checks a KV frame against what its request still needs. */
static int check_kv(const struct decode *d, const struct job *j, const struct frame *f, struct kv_block *k,
	struct ds_err *err)
{
	const struct kv_pool *pool = d->w->pool;
	struct frame_tensor t;
	size_t want = j->prompt - j->arrived * KV_BLOCK;
	int rc = kv_block_get(f, k, &t, err);

	if (rc)
		return rc;
	want = want < KV_BLOCK ? want : KV_BLOCK;
	if (j->state != JOB_ARRIVING || j->arrived >= kv_blocks_for(j->prompt) || k->first != j->arrived * KV_BLOCK ||
	    k->count != want)
		return err_set(err, DS_DATA, "request '%s': KV of tokens %llu to %llu is out of order", j->request.id,
			(unsigned long long)k->first, (unsigned long long)(k->first + k->count));
	if (t.type != pool->type || t.shape[0] != pool->layers || t.shape[1] != KV_BLOCK || t.shape[2] != pool->dim ||
	    t.offset || t.nbytes != pool->block_bytes || f->data_len != pool->block_bytes)
		return err_set(err, DS_PROTO,
			"request '%s': KV block is %s [%llu, %llu, %llu], this model's is %s [%zu, %d, %zu]",
			j->request.id, dtype_name(t.type), (unsigned long long)t.shape[0],
				(unsigned long long)t.shape[1],
			(unsigned long long)t.shape[2], dtype_name(pool->type), pool->layers, KV_BLOCK, pool->dim);
	return 0;
}

static int on_head(void *ctx, struct source *src, struct frame *f, void **dst, struct ds_err *err)
{
	struct decode *d = ctx;
	struct kv_block k;
	struct job *j;

	(void)err;
	j = find(d, src, f->stream);
	/* Full: nothing more is read from here than what belongs to requests that are held, cancels among them.  A
	 * source without any may have one. */
	if (f->type == FRAME_REQUEST && d->held >= d->max_batch && has_jobs(d, src) && !arriving_from(d, src))
		held_pause(&d->paused, src);
	if (f->type != FRAME_KV || !j)
		return 0;
	/* What does not fit is read into the stage's memory and judged in on_frame. */
	j->incoming = check_kv(d, j, f, &k, &(struct ds_err){ 0 }) ? NULL : next_block(d, j);
	*dst = j->incoming;
	return 0;
}

static int take_kv(struct decode *d, struct source *src, struct frame *f)
{
	struct job *j = find(d, src, f->stream);
	struct kv_block k;
	struct ds_err why;
	void *home;

	if (!j)
		return 0; /* its request was refused or cancelled: the rest of it is read and dropped */
	if (check_kv(d, j, f, &k, &why) || frame_check_payload(f, &why))
		return job_fail(d, j, &why);
	if (!j->incoming || j->incoming != f->data) {
		home = next_block(d, j);
		if (!home) {
			err_nomem(&why, d->w->pool->block_bytes, "a KV block");
			return job_fail(d, j, &why);
		}
		memcpy(home, f->data, d->w->pool->block_bytes);
	}
	j->incoming = NULL;
	j->arrived++;
	return 0;
}

static int take_prefilled(struct decode *d, struct source *src, struct frame *f)
{
	struct job *j = find(d, src, f->stream);
	struct sampled first;
	struct prefilled p;
	struct ds_err why;

	if (!j)
		return 0;
	if (prefilled_get(f, &first, 1, &p, &why))
		return job_fail(d, j, &why);
	if (j->state != JOB_ARRIVING || j->arrived != kv_blocks_for(j->prompt) || p.position != j->prompt ||
	    first.id >= d->w->model->config.vocab) {
		err_set(&why, DS_DATA,
			"request '%s': first token %u at %llu does not follow %zu prompt tokens with %zu KV blocks",
			j->request.id, first.id, (unsigned long long)p.position, j->prompt, j->arrived);
		return job_fail(d, j, &why);
	}
	j->state = JOB_READY;
	j->kv.length = j->parked.bytes ? 0 : j->prompt;
	j->parked.blocks = j->parked.bytes ? j->arrived : 0;
	j->parked.length = j->prompt;
	j->position = p.position;
	j->usage = p.usage;
	j->prefill_ns = p.prefill_ns;
	j->began_ns = time_mono_ns();
	emit(d, j, &first);
	return 0;
}

static int on_frame(void *ctx, struct source *src, struct frame *f, struct ds_err *err)
{
	struct decode *d = ctx;
	struct job *j;
	int rc = work_whole(f, src, err);

	if (rc)
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
		j = find(d, src, f->stream);
		if (j)
			send_done(d, j, "cancelled");
		return 0;
	case FRAME_ERROR:
	case FRAME_DONE: /* it failed or was cancelled upstream: the rest of it will not come */
		j = find(d, src, f->stream);
		if (j)
			job_end(d, j);
		return work_other(src, f, err);
	default:
		return work_other(src, f, err);
	}
	return rc;
}

static void on_gone(void *ctx, struct source *src, bool complete)
{
	struct decode *d = ctx;
	struct job *j = TAILQ_FIRST(&d->jobs), *next;

	held_forget(&d->paused, src);
	for (; j && !complete; j = next) {
		next = TAILQ_NEXT(j, link);
		if (j->src == src)
			job_end(d, j);
	}
}

/* ---- stepping ---- */

static bool has_blocks(const struct job *k)
{
	return k->kv.count && !k->parked.bytes;
}

/* Makes blocks free for j, which could run: first those of requests that are still arriving, whatever their age, since
 * they cannot run (they go on arriving into ordinary memory; one whose block is being read at this moment keeps its
 * own, --peer-timeout bounds that); then those of the youngest that is younger than j.  False if there is none. */
static bool park_another(struct decode *d, const struct job *j)
{
	struct job *k;

	TAILQ_FOREACH_REVERSE(k, &d->jobs, job_list, link)
		if (k != j && k->state == JOB_ARRIVING && has_blocks(k) && !k->incoming) {
			k->kv.length = k->arrived * KV_BLOCK;
			return kv_seq_park(&k->kv, d->w->pool, &k->parked);
		}
	TAILQ_FOREACH_REVERSE(k, &d->jobs, job_list, link) {
		if (k == j)
			return false;
		if (k->state == JOB_READY && has_blocks(k))
			return kv_seq_park(&k->kv, d->w->pool, &k->parked);
	}
	return false;
}

/* Room for one more token of j, whose KV may have to come back first. */
static bool make_room(struct decode *d, struct job *j)
{
	if (j->parked.bytes) {
		/* One block more than it had, so that it is not parked again at once. */
		while (kv_pool_available(d->w->pool) < j->parked.blocks + 1)
			if (!park_another(d, j))
				break;
		if (!kv_seq_unpark(&j->kv, d->w->pool, &j->parked))
			return false;
	}
	while (!kv_seq_reserve(&j->kv, d->w->pool, j->kv.length + 1))
		if (!park_another(d, j))
			return false;
	return true;
}

/* A request that no parking can help: all of the memory would not do. */
static bool too_large(const struct decode *d, const struct job *j)
{
	return kv_blocks_for(j->position + 1) > d->w->pool->blocks;
}

static size_t choose(struct decode *d)
{
	struct job *j = TAILQ_FIRST(&d->jobs), *next;
	struct ds_err why;
	size_t n = 0;

	for (; j && n < d->max_batch; j = next) {
		next = TAILQ_NEXT(j, link);
		if (j->state != JOB_READY || source_blocked(j->src))
			continue;
		if (too_large(d, j)) {
			err_set(&why, DS_CONFIG,
				"request '%s': token %llu does not fit in --kv-memory (%zu blocks of %d tokens)",
				j->request.id, (unsigned long long)j->position, d->w->pool->blocks, KV_BLOCK);
			job_fail(d, j, &why);
		} else if (make_room(d, j)) {
			d->stepping[n++] = j;
		} else {
			break; /* younger ones must not pass: they would take the room it waits for */
		}
	}
	return n;
}

static int on_step(void *ctx, bool *busy, struct ds_err *err)
{
	struct decode *d = ctx;
	struct segment *segs = d->w->segs;
	size_t n = choose(d);
	int rc;

	*busy = n > 0;
	if (!n)
		return 0;
	for (size_t i = 0; i < n; i++)
		segs[i] = (struct segment){ .kv = &d->stepping[i]->kv, .tokens = &d->stepping[i]->token, .rows = 1,
			.stream = d->stepping[i]->stream, .absorbed = true, .want_logits = true };
	rc = engine_step(d->w->engine, segs, n, err);
	if (!rc)
		rc = work_dumped(d->w, err);
	if (rc)
		return rc;
	for (size_t i = 0; i < n; i++) {
		struct job *j = d->stepping[i];
		struct sampled s;

		if (work_sample(d->w, &j->request, 0, j->history, segs[i].logits, segs[i].argmax[0], segs[i].lse[0],
			++j->position, &s)) {
			emit(d, j, &s);
		} else {
			struct ds_err why;

			work_not_finite(&j->request, &why);
			job_fail(d, j, &why);
		}
	}
	return 0;
}

static void on_drain(void *ctx)
{
	((struct decode *)ctx)->draining = true;
}

static void on_state(void *ctx)
{
	const struct decode *d = ctx;
	const struct job *j;
	size_t arriving = 0, parked = 0;
	struct buf b = { 0 };
	struct jw w;

	TAILQ_FOREACH(j, &d->jobs, link) {
		arriving += j->state == JOB_ARRIVING;
		parked += j->parked.bytes != NULL;
	}
	jw_init(&w, &b);
	jw_obj(&w);
	jw_key(&w, "requests");
	jw_uint(&w, d->held);
	jw_key(&w, "arriving");
	jw_uint(&w, arriving);
	jw_key(&w, "parked");
	jw_uint(&w, parked);
	jw_key(&w, "kv_blocks");
	jw_uint(&w, d->w->pool->blocks);
	jw_key(&w, "kv_blocks_used");
	jw_uint(&w, d->w->pool->used);
	jw_obj_end(&w);
	work_print_state(&b);
	buf_free(&b);
}

const struct stage_ops decode_ops = {
	.head = on_head,
	.frame = on_frame,
	.gone = on_gone,
	.incomplete = on_incomplete,
	.step = on_step,
	.drain = on_drain,
	.state = on_state,
};
