/* Rows that travel between ranks: out of an activation to wherever they go, and into one again. */
#include <string.h>

#include "kernels/cpu/stream.h"

static size_t scales_in(size_t cols)
{
	return round_up(cols, sizeof(float));
}

static size_t blocks_of(size_t cols)
{
	return (cols + FP8_BLOCK - 1) / FP8_BLOCK;
}

size_t kern_row_bytes(enum act_kind kind, size_t cols)
{
	switch (kind) {
	case ACT_F8:
		return round_up(scales_in(cols) + blocks_of(cols) * sizeof(float), 16);
	case ACT_BF16:
		return round_up(cols * sizeof(uint16_t), 16);
	default:
		return round_up(cols * sizeof(float), 16);
	}
}

/* ---- out ---- */

struct put_job {
	const struct isa *isa;
	struct split split;
	enum act_kind kind;
	const struct act *x;
	const uint32_t *row;
	void *const *dst;
};

static void put_row(const struct put_job *j, void *dst, size_t row)
{
	const struct act *x = j->x;
	size_t blocks = blocks_of(x->cols);

	if (x->kind == ACT_F8) {
		memcpy(dst, (const uint8_t *)x->data + row * x->ld, x->cols);
		memcpy((uint8_t *)dst + scales_in(x->cols), x->scale + row * blocks, blocks * sizeof(float));
	} else if (x->kind == ACT_BF16) {
		memcpy(dst, (const uint16_t *)x->data + row * x->ld, x->cols * sizeof(uint16_t));
	} else if (j->kind == ACT_BF16) {
		j->isa->pack_bf16(dst, (const float *)x->data + row * x->ld, x->cols);
	} else {
		memcpy(dst, (const float *)x->data + row * x->ld, x->cols * sizeof(float));
	}
}

static void put_rows(void *arg, size_t item, int worker)
{
	const struct put_job *j = arg;

	(void)worker;
	for (size_t i = item * j->split.per; i < split_end(j->split, item); i++)
		put_row(j, j->dst[i], j->row ? j->row[i] : i);
}

void kern_put_rows(struct kern_stream *s, enum act_kind kind, const struct act *x, const uint32_t *row,
	void *const *dst, size_t n)
{
	struct put_job j = { s->isa, split_rows(s, n, x->cols), kind, x, row, dst };

	pool_run(&s->pool, split_items(j.split), put_rows, &j);
}

/* ---- in ---- */

struct take_job {
	const struct isa *isa;
	struct split split;
	enum act_kind kind;
	const void *const *src;
	struct act *a;
	/* where a points, to be written */
	void *data, *wide;
	float *scale;
};

/* As kern_pack leaves a row: zeros up to ld. */
static void take_f8(const struct take_job *j, size_t r)
{
	size_t cols = j->a->cols, ld = j->a->ld, blocks = ld / FP8_BLOCK;
	uint8_t *codes = (uint8_t *)j->data + r * ld;

	memcpy(codes, j->src[r], cols);
	memset(codes + cols, 0, ld - cols);
	memcpy(j->scale + r * blocks, (const uint8_t *)j->src[r] + scales_in(cols), blocks * sizeof(float));
	if (j->wide)
		j->isa->widen((uint16_t *)j->wide + r * ld, codes, ld);
}

static void take_f32(const struct take_job *j, size_t r)
{
	float *y = (float *)j->data + r * j->a->ld;
	const uint16_t *x = j->src[r];

	if (j->kind == ACT_F32)
		memcpy(y, j->src[r], j->a->cols * sizeof(*y));
	for (size_t i = 0; j->kind == ACT_BF16 && i < j->a->cols; i++)
		y[i] = bf16_to_f32(x[i]);
}

static void take_rows(void *arg, size_t item, int worker)
{
	const struct take_job *j = arg;
	size_t cols = j->a->cols, ld = j->a->ld;

	(void)worker;
	for (size_t r = item * j->split.per; r < split_end(j->split, item); r++) {
		if (j->a->kind == ACT_F8) {
			take_f8(j, r);
		} else if (j->a->kind == ACT_BF16) {
			memcpy((uint16_t *)j->data + r * ld, j->src[r], cols * sizeof(uint16_t));
			memset((uint16_t *)j->data + r * ld + cols, 0, (ld - cols) * sizeof(uint16_t));
		} else {
			take_f32(j, r);
		}
	}
}

size_t kern_take_bytes(enum act_kind as, size_t rows, size_t cols)
{
	return as == ACT_F32 ? rows * cols * sizeof(float) : kern_pack_bytes(as, rows, cols);
}

void kern_take_rows(struct kern_stream *s, enum act_kind kind, enum act_kind as, const void *const *src, size_t rows,
	size_t cols, void *buf, struct act *a)
{
	size_t ld = as == ACT_F32 ? cols : packed_ld(cols);
	struct take_job j = { .isa = s->isa, .split = split_rows(s, rows, cols), .kind = kind, .src = src, .a = a,
		.data = buf };

	*a = (struct act){ .kind = as, .rows = rows, .cols = cols, .ld = ld, .data = buf };
	if (as == ACT_F8) {
		a->scale = j.scale = (float *)(void *)((char *)buf + packed_scales(rows, ld));
		a->wide = j.wide = s->isa->widen ? (char *)buf + packed_wide(rows, ld) : NULL;
	}
	pool_run(&s->pool, split_items(j.split), take_rows, &j);
}
