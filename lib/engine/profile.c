#include "engine/profile_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"

const char *stage_name(enum stage_id stage)
{
	static const char *const names[STAGE_COUNT] = { "embed", "ATTN-0", "ATTN-1", "DISPATCH", "SHARED", "MLP",
		"COMBINE", "dense", "MTP", "head", "sample", "vote", "wait DISPATCH", "wait COMBINE" };

	return names[stage];
}

/* ---- beginning and end ---- */

int profile_new(struct profile **out, const struct profile_options *o, struct ds_err *err)
{
	struct profile *p;
	int rc = 0;

	*out = NULL;
	if (!o->trace && !o->stats)
		return 0;
	p = mem_calloc(1, sizeof(*p));
	if (!p)
		return err_nomem(err, sizeof(*p), "the profile");
	p->o = *o;
	p->began = time_mono_ns();
	p->lane = -1;
	if (o->trace)
		rc = trace_open(&p->trace, o->trace, o->force, o->rank, o->program, err);
	if (rc) {
		free(p);
		return rc;
	}
	trace_lane(p->trace, LANE_STAGES, "stages");
	*out = p;
	return 0;
}

/* One thread's part of a job: the stage at whose call the job ran names it. */
static void on_job(void *ctx, int worker, size_t items, int64_t begin, int64_t end)
{
	struct profile *p = ctx;
	const char *name = p->depth ? stage_name(p->open[p->depth - 1].stage) : "other";

	trace_span(p->trace, LANE_THREADS + worker, name, begin, end, "\"items\":%zu", items);
}

int profile_watch(struct profile *p, struct kern_stream *s, const struct kv_pool *pool, bool round, struct ds_err *err)
{
	char name[32];

	if (!p)
		return 0;
	p->s = s;
	p->pool = pool;
	p->round = round;
	if (!p->trace)
		return 0;
	for (int i = 0; i < kern_threads(s); i++) {
		snprintf(name, sizeof(name), "thread %d", i);
		trace_lane(p->trace, LANE_THREADS + i, name);
	}
	return kern_watch(s, on_job, p, err);
}

void profile_free(struct profile *p)
{
	struct ds_err ignored;

	if (!p)
		return;
	if (p->s && p->trace)
		kern_watch(p->s, NULL, NULL, &ignored);
	trace_close(p->trace, &ignored);
	free(p);
}

void profile_add(struct profile *p, void (*put)(void *ctx, struct buf *text, struct jw *json), void *ctx)
{
	if (!p)
		return;
	p->add = put;
	p->add_ctx = ctx;
}

int profile_finish(struct profile *p, bool failed, struct ds_err *err)
{
	struct trace *t;

	if (!p)
		return 0;
	if (p->s && p->trace)
		kern_watch(p->s, NULL, NULL, err);
	if (p->o.stats && (!failed || p->sums.steps))
		profile_print(p);
	t = p->trace;
	p->trace = NULL;
	return trace_close(t, err);
}

const struct profile_sums *profile_sums(const struct profile *p) { return &p->sums; }

/* ---- steps and stages ---- */

void profile_step_begin(struct profile *p, bool draft, size_t rows, size_t segs)
{
	if (!p)
		return;
	p->draft = draft;
	p->step = time_mono_ns();
	p->step_number = p->sums.steps;
	p->step_rows = rows;
	p->step_segs = segs;
}

static void tell_failure(struct trace *t)
{
	const char *why = trace_failed(t);

	if (why)
		log_msg(LOG_WARN, "the trace ends here: %s", why);
}

static void draw_step(struct profile *p, int64_t now)
{
	trace_span(p->trace, LANE_STAGES, !p->step_rows ? "others' step" : p->draft ? "draft" : "step", p->step, now,
		"\"step\":%llu,\"rows\":%zu,\"segments\":%zu", (unsigned long long)p->step_number, p->step_rows,
		p->step_segs);
	trace_counter(p->trace, "batch", p->step, "\"rows\":%zu,\"segments\":%zu", p->step_rows, p->step_segs);
	if (p->pool)
		trace_counter(p->trace, "KV blocks", p->step, "\"used\":%zu", p->pool->used);
	trace_flush(p->trace, now);
	tell_failure(p->trace);
}

void profile_step_end(struct profile *p)
{
	int64_t now;

	if (!p)
		return;
	now = time_mono_ns();
	p->sums.step_ns += now - p->step;
	if (!p->step_rows) {
		p->sums.attended++;
	} else if (p->draft) {
		p->sums.stage[STAGE_MTP].calls++;
		p->sums.stage[STAGE_MTP].ns += now - p->step;
	} else {
		p->sums.steps++;
		p->sums.rows += p->step_rows;
	}
	if (p->trace)
		draw_step(p, now);
	p->draft = false;
}

void profile_begin(struct profile *p, enum stage_id stage, size_t layer, size_t rows)
{
	if (!p || p->depth == DEPTH)
		return;
	p->open[p->depth++] = (struct open_stage){ .stage = stage, .layer = layer, .rows = rows,
		.begin = time_mono_ns() };
}

static void add(struct stage_sum *to, const struct stage_sum *x)
{
	to->calls += x->calls;
	to->ns += x->ns;
	to->weight_bytes += x->weight_bytes;
	to->cache_bytes += x->cache_bytes;
	to->operations += x->operations;
}

static void draw(struct profile *p, const struct open_stage *s, int64_t end)
{
	char layer[32] = "", lane[32] = "";

	if (s->layer != SIZE_MAX)
		snprintf(layer, sizeof(layer), "\"layer\":%zu,", s->layer);
	if (p->lane >= 0)
		snprintf(lane, sizeof(lane), "\"micro_batch\":%d,", p->lane);
	trace_span(p->trace, LANE_STAGES, stage_name(s->stage), s->begin, end,
		"%s%s\"rows\":%zu,\"weight_bytes\":%llu,\"cache_bytes\":%llu,\"operations\":%llu", layer, lane, s->rows,
		(unsigned long long)s->sum.weight_bytes, (unsigned long long)s->sum.cache_bytes,
		(unsigned long long)s->sum.operations);
}

static void end_at(struct profile *p, int64_t now)
{
	struct open_stage *s = &p->open[--p->depth];

	if (!p->draft) { /* a draft's calls and time are those of its pass */
		s->sum.calls = 1;
		s->sum.ns = now - s->begin - s->within;
	}
	add(&p->sums.stage[p->draft ? STAGE_MTP : s->stage], &s->sum);
	if (p->depth)
		p->open[p->depth - 1].within += now - s->begin;
	if (p->trace)
		draw(p, s, now);
}

void profile_end(struct profile *p)
{
	if (p && p->depth)
		end_at(p, time_mono_ns());
}

void profile_next(struct profile *p, enum stage_id stage)
{
	struct open_stage *s;
	int64_t now;

	if (!p || !p->depth)
		return;
	now = time_mono_ns();
	end_at(p, now);
	s = &p->open[p->depth++];
	*s = (struct open_stage){ .stage = stage, .layer = s->layer, .rows = s->rows, .begin = now };
}

void profile_micro_batch(struct profile *p, int lane)
{
	if (p)
		p->lane = lane;
}

void profile_transfer(struct profile *p, enum stage_id stage, size_t layer, size_t lane, int64_t begin, int64_t end,
	size_t bytes)
{
	static const char *const names[] = { "communication 0", "communication 1" };

	if (!p)
		return;
	if (p->trace && !p->lanes_named[lane])
		trace_lane(p->trace, LANE_TRANSFERS + (int)lane, names[lane]);
	p->lanes_named[lane] = true;
	p->sums.transfers++;
	p->sums.transfer_bytes += bytes;
	p->sums.transfer_ns += end - begin;
	if (p->trace)
		trace_span(p->trace, LANE_TRANSFERS + (int)lane, stage_name(stage), begin, end,
			"\"layer\":%zu,\"micro_batch\":%zu,\"bytes\":%zu", layer, lane, bytes);
}

void profile_out(struct profile *p, size_t tokens)
{
	if (p)
		p->sums.out += tokens;
}

/* ---- what a stage asks for ---- */

static struct stage_sum *current(struct profile *p)
{
	return p->depth ? &p->open[p->depth - 1].sum : &p->elsewhere;
}

static uint64_t mat_bytes(const struct mat *m)
{
	uint64_t scales = (uint64_t)((m->rows + FP8_BLOCK - 1) / FP8_BLOCK) * ((m->cols + FP8_BLOCK - 1) / FP8_BLOCK);

	return (uint64_t)m->rows * m->cols * dtype_size(m->type) + (m->scale ? scales * sizeof(*m->scale) : 0);
}

void profile_gemm(struct profile *p, const struct gemm *g, size_t count)
{
	struct stage_sum *s;

	if (!p)
		return;
	s = current(p);
	for (size_t i = 0; i < count; i++) {
		if (!g[i].rows)
			continue;
		s->weight_bytes += mat_bytes(g[i].w);
		s->operations += 2 * (uint64_t)g[i].rows * g[i].w->rows * g[i].w->cols;
	}
}

void profile_embed(struct profile *p, const struct mat *table, size_t rows)
{
	if (p)
		current(p)->weight_bytes += (uint64_t)rows * table->cols * dtype_size(table->type);
}

void profile_attn(struct profile *p, const struct attn_shape *a, const struct attn_seg *segs, size_t count,
	bool absorbed)
{
	struct stage_sum *s;
	uint64_t per_pair;

	if (!p || !count)
		return;
	s = current(p);
	per_pair = absorbed ? 2 * a->lora + a->rope : a->nope + a->rope + a->v;
	s->weight_bytes += mat_bytes(a->kv_b);
	for (size_t i = 0; i < count; i++) {
		uint64_t rows = segs[i].rows, seen = segs[i].pos0 + rows;
		uint64_t pairs = rows * segs[i].pos0 + rows * (rows + 1) / 2;

		s->cache_bytes += seen * (a->lora + a->rope) * dtype_size(segs[i].kv.type);
		s->operations += 2 * a->heads *
			((absorbed ? rows : seen) * a->lora * (a->nope + a->v) + pairs * per_pair);
	}
}

/* ---- requests ---- */

void profile_request(struct profile *p, uint64_t stream, const char *id, size_t prompt)
{
	if (p && p->trace)
		trace_async(p->trace, 'b', "request", stream, id, time_mono_ns(), "\"prompt\":%zu", prompt);
}

void profile_request_end(struct profile *p, uint64_t stream, const char *id)
{
	if (!p || !p->trace)
		return;
	trace_async(p->trace, 'e', "request", stream, id, time_mono_ns(), NULL);
	trace_flush(p->trace, 0);
}
