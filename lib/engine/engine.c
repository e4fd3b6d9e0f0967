#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "base/time.h"
#include "engine/internal.h"

enum { HUGE_ROWS = 64, UNIT_ROWS = 256 };

/* ---- working memory ---- */

static size_t larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

/* Hands out a part of the working memory; in the first pass, without a base, it only adds up. */
static void *part(const struct engine *e, size_t *at, size_t n, size_t size)
{
	void *p = e->memory ? e->memory + *at : NULL;

	*at += round_up(n * size, 64);
	return p;
}

static size_t pack_bytes(size_t rows, size_t cols)
{
	return larger(kern_pack_bytes(ACT_BF16, rows, cols), kern_pack_bytes(ACT_F8, rows, cols));
}

static void lay_out_attention(struct engine *e, size_t *at)
{
	const struct config *c = e->c;
	size_t rows = e->max_rows;

	e->inv_freq = part(e, at, c->rope / 2, sizeof(double));
	e->tokens = part(e, at, rows, sizeof(uint32_t));
	e->cs = part(e, at, rows * c->rope, sizeof(float));
	e->h = part(e, at, rows * c->hidden, sizeof(float));
	e->x = part(e, at, rows * c->hidden, sizeof(float));
	e->t = part(e, at, rows * c->hidden, sizeof(float));
	e->qa = part(e, at, rows * c->q_lora, sizeof(float));
	e->q = part(e, at, rows * c->heads * (c->nope + c->rope), sizeof(float));
	e->kva = part(e, at, rows * (c->kv_lora + c->rope), sizeof(float));
	e->o = part(e, at, rows * c->heads * c->v, sizeof(float));
	e->eh = part(e, at, e->mtp ? rows * 2 * c->hidden : 0, sizeof(float));
	e->attn = part(e, at, e->max_segs, sizeof(struct attn_seg));
	e->shown = part(e, at, e->max_segs, sizeof(struct tap_rows));
}

static void lay_out_ffn(struct engine *e, size_t *at)
{
	const struct config *c = e->c;
	size_t rows = e->max_rows, pairs = e->max_pairs, dense = larger(c->inter, c->shared * c->moe_inter);
	size_t wide = larger(rows * dense, pairs * c->moe_inter);
	size_t in = larger(e->mtp ? 2 * c->hidden : c->hidden, c->q_lora);

	e->gate = part(e, at, wide, sizeof(float));
	e->up = part(e, at, wide, sizeof(float));
	e->router = part(e, at, rows * c->experts, sizeof(float));
	e->ids = part(e, at, rows * c->top_k, sizeof(uint32_t));
	e->weights = part(e, at, rows * c->top_k, sizeof(float));
	e->gather = part(e, at, rows * c->top_k, sizeof(uint32_t));
	e->slot = part(e, at, rows * c->top_k, sizeof(uint32_t));
	e->offset = part(e, at, c->experts + 2, sizeof(uint32_t));
	e->expert_out = part(e, at, pairs * c->hidden, sizeof(float));
	e->gemms = part(e, at, 2 * c->experts + 4, sizeof(struct gemm));
	e->packed = part(e, at, pack_bytes(larger(rows, e->max_logits), in), 1);
	e->packed2 = part(e, at, larger(larger(pack_bytes(rows, dense), pack_bytes(rows, c->hidden)),
		larger(pack_bytes(pairs, c->moe_inter), pack_bytes(rows, c->heads * c->v))), 1);
}

static void lay_out_unit(struct engine *e, size_t *at)
{
	size_t rows = ep_world(e->ep) * ep_tokens(e->ep), hidden = e->c->hidden;

	e->arrived = part(e, at, larger(pack_bytes(rows, hidden), kern_take_bytes(ACT_F32, rows, hidden)), 1);
	e->cut = part(e, at, e->max_segs + 1, sizeof(struct segment));
	e->lanes = part(e, at, EP_LANES, sizeof(struct lane));
}

static size_t lay_out(struct engine *e)
{
	const struct config *c = e->c;
	size_t at = 0;

	lay_out_attention(e, &at);
	lay_out_ffn(e, &at);
	if (e->ep)
		lay_out_unit(e, &at);
	e->last = part(e, &at, e->max_logits * c->hidden, sizeof(float));
	e->logits = part(e, &at, e->max_logits * c->vocab, sizeof(float));
	e->argmax = part(e, &at, e->max_logits, sizeof(uint32_t));
	e->lse = part(e, &at, e->max_logits, sizeof(double));
	return at;
}

static int reserve(struct engine *e, struct ds_err *err)
{
	e->memory_bytes = lay_out(e);
	e->memory = mmap(NULL, e->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		-1, 0);
	if (e->memory == MAP_FAILED) {
		e->memory = NULL;
		return err_set(err, DS_OS,
			"out of memory: %zu bytes for steps of %zu tokens; lower --chunk or --max-batch",
			e->memory_bytes, e->max_rows);
	}
	lay_out(e);
	config_inv_freq(e->c, e->inv_freq);
	return 0;
}

/* Working memory of the kernels, so that no step can run out of it. */
static int reserve_kernels(struct engine *e, struct ds_err *err)
{
	const struct config *c = e->c;
	struct attn_shape a = { .heads = c->heads, .nope = c->nope, .rope = c->rope, .v = c->v, .lora = c->kv_lora,
		.kv_b = &e->m->layers[0].kv_b, .round = e->round };
	struct kv_pages kv = { .page = KV_BLOCK, .row_ld = engine_kv_dim(e), .type = engine_kv_type(e) };

	size_t shared, bytes = kern_attn_bytes(e->s, &a, &kv, e->max_rows, &shared);

	return kern_reserve(e->s, bytes, shared, err);
}

int engine_new(struct engine **out, const struct model *m, const struct engine_config *c, struct ds_err *err)
{
	struct engine *e;
	int rc;

	if (c->mtp && !m->mtp_count)
		return err_set(err, DS_CONFIG, "model '%s' has no MTP layer", m->dir);
	e = mem_calloc(1, sizeof(*e));
	if (!e)
		return err_nomem(err, sizeof(*e), "engine");
	e->m = m;
	e->c = &m->config;
	e->round = c->arith == ARITH_BF16;
	e->dequant = c->dequant;
	e->max_rows = c->max_rows;
	e->max_segs = c->max_segs;
	e->max_logits = c->max_logits ? c->max_logits : c->max_segs;
	e->mtp = c->mtp;
	e->ep = c->ep;
	e->overlap = c->overlap;
	e->micro_batches = c->micro_batches;
	/* in a unit the rows are those of others; what comes in one round is computed in as many parts as it takes */
	e->max_pairs = larger(e->max_rows, e->ep ? UNIT_ROWS : 1) * e->c->top_k;
	rc = reserve(e, err);
	if (!rc)
		rc = kern_stream_new(&e->s, c->threads, c->kernels, err);
	if (!rc)
		rc = reserve_kernels(e, err);
	if (rc) {
		engine_free(e);
		return rc;
	}
	*out = e;
	return 0;
}

void engine_free(struct engine *e)
{
	if (!e)
		return;
	if (e->s)
		kern_stream_free(e->s);
	if (e->memory)
		munmap(e->memory, e->memory_bytes);
	free(e->pages);
	free(e);
}

int engine_set_profile(struct engine *e, struct profile *p, const struct kv_pool *pool, struct ds_err *err)
{
	e->profile = p;
	return profile_watch(p, e->s, pool, e->round, err);
}

const char *engine_kernels(const struct engine *e) { return kern_set_name(e->s); }
enum dtype engine_kv_type(const struct engine *e) { return e->round ? DT_BF16 : DT_F32; }
size_t engine_kv_dim(const struct engine *e) { return e->c->kv_lora + e->c->rope; }

int engine_kv_pool(const struct engine *e, uint64_t bytes, struct kv_pool **p, struct ds_err *err)
{
	return kv_pool_new(p, engine_kv_type(e), e->c->layers + e->mtp, engine_kv_dim(e), bytes, err);
}

/* ---- products ---- */

enum act_kind engine_act(const struct engine *e, const struct mat *w)
{
	if (w->type == DT_F8_E4M3)
		return e->dequant ? ACT_F32 : ACT_F8;
	return e->round && w->type == DT_BF16 ? ACT_BF16 : ACT_F32;
}

void engine_gemm(struct engine *e, size_t count)
{
	profile_gemm(e->profile, e->gemms, count);
	kern_gemm(e->s, e->gemms, count);
}

void engine_linear(struct engine *e, float *y, const float *x, const struct mat *w, size_t rows, void *buf, bool round)
{
	struct act a;

	kern_pack(e->s, engine_act(e, w), e->c->ue8m0, x, rows, w->cols, w->cols, buf, &a);
	e->gemms[0] = (struct gemm){ .y = y, .ldy = w->rows, .x = &a, .w = w, .rows = rows, .round = round };
	engine_gemm(e, 1);
}

/* ---- a step ---- */

void engine_embed(struct engine *e, const struct mat *table, struct batch *b)
{
	const struct config *c = e->c;
	size_t row = 0;

	profile_begin(e->profile, STAGE_EMBED, SIZE_MAX, b->rows);
	for (size_t i = 0; i < b->count; i++)
		for (size_t r = 0; r < b->segs[i].rows; r++, row++) {
			e->tokens[row] = b->segs[i].tokens[r];
			config_rope_row(c, e->inv_freq, batch_pos(b, &b->segs[i]) + r, e->cs + row * c->rope);
		}
	profile_embed(e->profile, table, b->rows);
	kern_embed(e->s, e->h, c->hidden, table, e->tokens, b->rows);
	if (e->round)
		kern_round(e->s, e->h, b->rows * c->hidden);
	profile_end(e->profile);
	if (!b->mtp)
		engine_show(e, b, "embed", 0, DT_F32, e->h, c->hidden);
}

void engine_cache(struct engine *e, const struct layer *l, size_t n, struct batch *b)
{
	profile_begin(e->profile, STAGE_ATTN0, n, b->rows);
	stage_attn0(e, l, n, b);
	profile_end(e->profile);
}

void engine_join(struct engine *e, size_t n, struct batch *b)
{
	engine_show(e, b, "mlp_out", n, DT_F32, e->t, e->c->hidden);
	kern_add(e->s, e->h, e->t, b->rows * e->c->hidden, e->round);
	engine_show(e, b, "out", n, DT_F32, e->h, e->c->hidden);
}

void engine_layer(struct engine *e, const struct layer *l, size_t n, struct batch *b)
{
	struct profile *p = e->profile;
	struct act x;

	profile_begin(p, STAGE_ATTN1, n, b->rows);
	stage_attn1(e, l, n, b);
	if (l->moe) {
		profile_next(p, STAGE_DISPATCH);
		stage_dispatch(e, l, b, &x);
		profile_next(p, STAGE_MLP);
		stage_mlp(e, l, b, &x);
		profile_next(p, STAGE_SHARED);
		stage_shared(e, l, b);
		profile_next(p, STAGE_COMBINE);
		stage_combine(e, b);
	} else {
		profile_next(p, STAGE_DENSE);
		stage_dense(e, l, b);
	}
	engine_join(e, n, b);
	profile_end(p);
}

/* Points the segments at their rows of what the step gives. */
static void hand_out(struct engine *e, struct batch *b)
{
	size_t row = 0, n = 0;

	for (size_t i = 0; i < b->count; i++) {
		struct segment *s = &b->segs[i];

		s->hidden = e->x + row * e->c->hidden;
		s->logits = e->logits + n * e->c->vocab;
		s->argmax = e->argmax + n;
		s->lse = e->lse + n;
		row += s->rows;
		n += s->want_logits;
	}
}

/* The last norm for all rows, the head for those whose logits are wanted. */
void engine_head(struct engine *e, const struct mat *norm, const struct mat *head, struct batch *b)
{
	const struct config *c = e->c;
	size_t row = 0, n = 0;

	profile_begin(e->profile, STAGE_HEAD, SIZE_MAX, b->rows);
	kern_rmsnorm(e->s, e->x, c->hidden, e->h, c->hidden, norm, (float)c->eps, b->rows, c->hidden, e->round);
	if (!b->mtp)
		engine_show(e, b, "final", 0, DT_F32, e->x, c->hidden);
	for (size_t i = 0; i < b->count; i++) {
		size_t want = b->segs[i].want_logits;

		row += b->segs[i].rows;
		memcpy(e->last + n * c->hidden, e->x + (row - want) * c->hidden, want * c->hidden * sizeof(float));
		n += want;
	}
	if (n) {
		engine_linear(e, e->logits, e->last, head, n, e->packed, false);
		if (!b->mtp)
			engine_show_last(e, b, "logits", e->logits, c->vocab);
		kern_argmax_lse(e->s, e->logits, c->vocab, n, c->vocab, e->argmax, e->lse);
	}
	hand_out(e, b);
	profile_end(e->profile);
}

/* Room for the page pointers of every segment. */
static int reserve_pages(struct engine *e, const struct batch *b, struct ds_err *err)
{
	size_t need = 0;
	void **p;

	for (size_t i = 0; i < b->count; i++)
		need += kv_blocks_for(batch_pos(b, &b->segs[i]) + b->segs[i].rows);
	if (need <= e->page_cap)
		return 0;
	p = mem_realloc(e->pages, 2 * need, sizeof(*p));
	if (!p)
		return err_nomem(err, 2 * need * sizeof(*p), "page tables");
	e->pages = p;
	e->page_cap = 2 * need;
	return 0;
}

/*
 * A step of few rows touches the beginnings of some thirty buffers.  In huge pages that is as many times 2 MiB to be
 * cleared, longer than the first step of a program computes; so they come with the first step that fills them.
 */
static void widen_pages(struct engine *e, size_t rows)
{
	if (e->huge || rows < HUGE_ROWS)
		return;
	e->huge = true;
	mem_huge_now(e->memory, e->memory_bytes);
}

int engine_begin(struct engine *e, struct batch *b, struct ds_err *err)
{
	for (size_t i = 0; i < b->count; i++) {
		b->rows += b->segs[i].rows;
		b->logits += b->segs[i].want_logits;
		if (b->segs[i].want_logits > b->segs[i].rows)
			return err_set(err, DS_BUG, "logits of %zu rows wanted of %zu", b->segs[i].want_logits,
				b->segs[i].rows);
	}
	if (b->count > e->max_segs || b->rows > e->max_rows || b->logits > e->max_logits)
		return err_set(err, DS_BUG,
			"a step of %zu segments, %zu rows and %zu of logits, more than %zu, %zu and %zu", b->count,
			b->rows, b->logits, e->max_segs, e->max_rows, e->max_logits);
	widen_pages(e, b->rows);
	return reserve_pages(e, b, err);
}

int engine_check(struct engine *e, struct ds_err *err)
{
	int64_t began = time_mono_ns();
	int rc;

	if (!e->unchecked)
		return 0;
	rc = model_check(e->m, err);
	e->unchecked = rc != 0;
	e->check_ns = began + 100 * (time_mono_ns() - began);
	return rc;
}

/* Files that are written to under a step make what it computed worthless.  Looking takes a hundredth of the time, and
 * that of answers that end. */
static int check_step(struct engine *e, struct ds_err *err)
{
	e->unchecked = true;
	return time_mono_ns() < e->check_ns ? 0 : engine_check(e, err);
}

static int step_alone(struct engine *e, struct batch *b)
{
	engine_embed(e, &e->m->embed, b);
	for (size_t n = 0; n < e->c->layers; n++) {
		engine_cache(e, &e->m->layers[n], n, b);
		engine_layer(e, &e->m->layers[n], n, b);
	}
	return 0;
}

static int run_in_unit(struct engine *e, struct unit_work *w, const struct ep_step *step, struct ds_err *err)
{
	engine_embed(e, &e->m->embed, w->b);
	lanes_fill(e, w->b, w->rows[0], step);
	return schedule_run(e, step->lanes, err);
}

static int step_in_unit(struct engine *e, struct batch *b, struct ds_err *err)
{
	size_t first = lanes_cut(e, b);
	struct unit_work w = { .kind = UNIT_MAIN, .rows = { first, b->rows - first }, .run = run_in_unit, .b = b };

	return engine_unit_step(e, &w, err);
}

int engine_step(struct engine *e, struct segment *segs, size_t count, struct ds_err *err)
{
	struct batch b = { .segs = segs, .count = count };
	int rc = engine_begin(e, &b, err);

	if (rc || !b.rows)
		return rc;
	profile_step_begin(e->profile, false, b.rows, count);
	rc = e->ep ? step_in_unit(e, &b, err) : step_alone(e, &b);
	if (rc)
		return rc;
	engine_head(e, &e->m->norm, &e->m->head, &b);
	profile_step_end(e->profile);
	rc = check_step(e, err);
	if (rc)
		return rc;
	for (size_t i = 0; i < count; i++)
		segs[i].kv->length += segs[i].rows;
	e->step++;
	return 0;
}
