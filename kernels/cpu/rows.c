/*
 * Operations on rows: spread over threads, each row by the stream's instruction set or, where there is little to do,
 * in C.
 */
#include <math.h>

#include "base/mem.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/widen.h"

/* ---- packing ---- */

size_t kern_pack_bytes(enum act_kind kind, size_t rows, size_t cols)
{
	size_t ld = packed_ld(cols);

	switch (kind) {
	case ACT_BF16:
		return rows * ld * sizeof(uint16_t);
	case ACT_F8:
		return packed_wide(rows, ld) + rows * ld * sizeof(uint16_t);
	default:
		return 0;
	}
}

struct pack_job {
	const struct isa *isa;
	struct split split;
	const float *x;
	size_t ldx, cols, ld;
	uint16_t *bf16, *wide;
	uint8_t *codes;
	float *scales;
	bool ue8m0;
};

static void pack_rows(void *arg, size_t item, int worker)
{
	const struct pack_job *j = arg;
	size_t blocks = j->ld / FP8_BLOCK;

	(void)worker;
	for (size_t r = item * j->split.per; r < split_end(j->split, item); r++) {
		const float *x = j->x + r * j->ldx;

		if (j->bf16) {
			j->isa->pack_bf16(j->bf16 + r * j->ld, x, j->cols);
			memset(j->bf16 + r * j->ld + j->cols, 0, (j->ld - j->cols) * sizeof(uint16_t));
		} else {
			j->isa->quant(j->codes + r * j->ld, j->scales + r * blocks, x, j->cols, j->ue8m0);
			memset(j->codes + r * j->ld + j->cols, 0, j->ld - j->cols);
			if (j->wide)
				j->isa->widen(j->wide + r * j->ld, j->codes + r * j->ld, j->ld);
		}
	}
}

void kern_pack(struct kern_stream *s, enum act_kind kind, bool ue8m0, const float *x, size_t rows, size_t cols,
	size_t ldx, void *buf, struct act *a)
{
	size_t ld = packed_ld(cols);
	struct pack_job j = { .isa = s->isa, .split = split_rows(s, rows, cols), .x = x, .ldx = ldx, .cols = cols,
		.ld = ld, .ue8m0 = ue8m0 };

	*a = (struct act){ .kind = kind, .rows = rows, .cols = cols, .ld = ld, .data = buf };
	switch (kind) {
	case ACT_F32:
		a->data = x;
		a->ld = ldx;
		return;
	case ACT_BF16:
		j.bf16 = buf;
		break;
	case ACT_F8:
		j.codes = buf;
		j.scales = (float *)(void *)((char *)buf + packed_scales(rows, ld));
		a->scale = j.scales;
		j.wide = s->isa->widen ? (uint16_t *)(void *)((char *)buf + packed_wide(rows, ld)) : NULL;
		a->wide = j.wide;
		break;
	}
	pool_run(&s->pool, split_items(j.split), pack_rows, &j);
}

/* ---- norm, add, SwiGLU, round ---- */

struct row_job {
	const struct isa *isa;
	struct split split;
	float *y;
	const float *x, *u;
	size_t ldy, ldx, ldu, cols;
	const struct mat *w;
	float eps;
	bool round;
};

static void norm_rows(void *arg, size_t item, int worker)
{
	const struct row_job *j = arg;

	(void)worker;
	for (size_t r = item * j->split.per; r < split_end(j->split, item); r++)
		j->isa->rmsnorm(j->y + r * j->ldy, j->x + r * j->ldx, j->w, j->eps, j->cols, j->round);
}

void kern_rmsnorm(struct kern_stream *s, float *y, size_t ldy, const float *x, size_t ldx, const struct mat *w,
	float eps, size_t rows, size_t cols, bool round)
{
	struct row_job j = { .isa = s->isa, .split = split_rows(s, rows, cols), .y = y, .ldy = ldy, .x = x, .ldx = ldx,
		.w = w, .eps = eps, .cols = cols, .round = round };

	pool_run(&s->pool, split_items(j.split), norm_rows, &j);
}

static void swiglu_rows(void *arg, size_t item, int worker)
{
	const struct row_job *j = arg;

	(void)worker;
	for (size_t r = item * j->split.per; r < split_end(j->split, item); r++)
		j->isa->swiglu(j->y + r * j->ldy, j->x + r * j->ldx, j->u + r * j->ldu, j->cols, j->round);
}

void kern_swiglu(struct kern_stream *s, float *y, size_t ldy, const float *g, size_t ldg, const float *u, size_t ldu,
	size_t rows, size_t cols, bool round)
{
	struct row_job j = { .isa = s->isa, .split = split_rows(s, rows, cols * 4), .y = y, .ldy = ldy, .x = g,
		.ldx = ldg, .u = u, .ldu = ldu, .cols = cols, .round = round };

	pool_run(&s->pool, split_items(j.split), swiglu_rows, &j);
}

enum { STRIP = 4096 }; /* elements of a flat array that go to one thread at a time */

static void add_strip(void *arg, size_t item, int worker)
{
	const struct row_job *j = arg;
	size_t a = item * STRIP, b = a + STRIP < j->cols ? a + STRIP : j->cols;

	(void)worker;
	for (size_t i = a; i < b; i++)
		j->y[i] += j->x[i];
	if (j->round)
		j->isa->round(j->y + a, b - a);
}

void kern_add(struct kern_stream *s, float *y, const float *x, size_t n, bool round)
{
	struct row_job j = { .isa = s->isa, .y = y, .x = x, .cols = n, .round = round };

	pool_run(&s->pool, (n + STRIP - 1) / STRIP, add_strip, &j);
}

static void round_strip(void *arg, size_t item, int worker)
{
	const struct row_job *j = arg;
	size_t a = item * STRIP;

	(void)worker;
	j->isa->round(j->y + a, a + STRIP < j->cols ? STRIP : j->cols - a);
}

void kern_round(struct kern_stream *s, float *x, size_t n)
{
	struct row_job j = { .isa = s->isa, .y = x, .cols = n };

	pool_run(&s->pool, (n + STRIP - 1) / STRIP, round_strip, &j);
}

/* ---- rope, embedding ---- */

struct rope_job {
	const struct isa *isa;
	struct split split;
	float *x;
	size_t ldx, ldh, heads, dim;
	const float *cs;
	bool round;
};

static void rope_rows(void *arg, size_t item, int worker)
{
	const struct rope_job *j = arg;

	(void)worker;
	for (size_t r = item * j->split.per; r < split_end(j->split, item); r++) {
		const float *cs = j->cs + r * j->dim;

		for (size_t h = 0; h < j->heads; h++) {
			float *x = j->x + r * j->ldx + h * j->ldh;

			for (size_t i = 0; i + 1 < j->dim; i += 2) {
				float a = x[i], b = x[i + 1];

				x[i] = a * cs[i] - b * cs[i + 1];
				x[i + 1] = a * cs[i + 1] + b * cs[i];
			}
			if (j->round)
				j->isa->round(x, j->dim);
		}
	}
}

void kern_rope(struct kern_stream *s, float *x, size_t ldx, size_t ldh, size_t heads, size_t dim, const float *cs,
	size_t rows, bool round)
{
	struct rope_job j = { s->isa, split_rows(s, rows, heads * dim), x, ldx, ldh, heads, dim, cs, round };

	pool_run(&s->pool, split_items(j.split), rope_rows, &j);
}

struct embed_job {
	struct split split;
	float *y;
	size_t ldy;
	const struct mat *table;
	const uint32_t *ids;
};

static void embed_rows(void *arg, size_t item, int worker)
{
	const struct embed_job *j = arg;

	(void)worker;
	for (size_t r = item * j->split.per; r < split_end(j->split, item); r++)
		mat_widen(j->y + r * j->ldy, j->table, j->ids[r], 0, j->table->cols);
}

void kern_embed(struct kern_stream *s, float *y, size_t ldy, const struct mat *table, const uint32_t *ids, size_t rows)
{
	struct embed_job j = { split_rows(s, rows, table->cols), y, ldy, table, ids };

	pool_run(&s->pool, split_items(j.split), embed_rows, &j);
}

/* ---- sampling ---- */

struct argmax_job {
	const struct isa *isa;
	const float *logits;
	size_t ld, cols;
	uint32_t *argmax;
	double *lse;
};

static void argmax_row(void *arg, size_t r, int worker)
{
	const struct argmax_job *j = arg;
	const float *x = j->logits + r * j->ld;
	float max = j->isa->argmax(x, j->cols, &j->argmax[r]);

	(void)worker;
	/* of an infinite maximum the difference would be NaN */
	j->lse[r] = isinf(max) ? (double)max : (double)max + log(j->isa->sum_exp(x, j->cols, max));
}

void kern_argmax_lse(struct kern_stream *s, const float *logits, size_t ld, size_t rows, size_t cols, uint32_t *argmax,
	double *lse)
{
	struct argmax_job j = { s->isa, logits, ld, cols, argmax, lse };

	pool_run(&s->pool, rows, argmax_row, &j);
}
