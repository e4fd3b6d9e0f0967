/* COMBINE: the outputs of each token's experts, weighted and summed in the order of its choices. */
#include "kernels/cpu/stream.h"

struct combine_job {
	const struct isa *isa;
	struct split split;
	float *y;
	size_t ldy;
	/* either rows of x by number, or rows where they lie */
	const float *x;
	size_t ldx;
	const uint32_t *slot;
	const void *const *rows;
	bool bf16;
	const float *w;
	size_t top_k, cols;
	bool round;
};

enum { LANES = 256 }; /* columns summed at a time */

static void add_choice(const struct combine_job *j, size_t i, size_t c, float *sum, size_t n)
{
	if (j->slot)
		j->isa->add_scaled(sum, j->x + j->slot[i] * j->ldx + c, false, j->w[i], n);
	else if (j->rows[i])
		j->isa->add_scaled(sum, j->bf16 ? (const void *)((const uint16_t *)j->rows[i] + c) :
			(const float *)j->rows[i] + c, j->bf16, j->w[i], n);
}

static void combine_row(const struct combine_job *j, size_t r)
{
	float *y = j->y + r * j->ldy;

	for (size_t c = 0; c < j->cols; c += LANES) {
		size_t len = j->cols - c < LANES ? j->cols - c : LANES;
		float sum[LANES] = { 0 };

		for (size_t k = 0; k < j->top_k; k++)
			add_choice(j, r * j->top_k + k, c, sum, len);
		for (size_t i = 0; i < len; i++)
			y[c + i] += sum[i];
	}
	if (j->round)
		j->isa->round(y, j->cols);
}

static void combine_rows(void *arg, size_t item, int worker)
{
	const struct combine_job *j = arg;

	(void)worker;
	for (size_t r = item * j->split.per; r < split_end(j->split, item); r++)
		combine_row(j, r);
}

void kern_combine(struct kern_stream *s, float *y, size_t ldy, const float *x, size_t ldx, const uint32_t *slot,
	const float *w, size_t top_k, size_t rows, size_t cols, bool round)
{
	struct combine_job j = { .isa = s->isa, .split = split_rows(s, rows, cols * (top_k + 1)), .y = y, .ldy = ldy,
		.x = x, .ldx = ldx, .slot = slot, .w = w, .top_k = top_k, .cols = cols, .round = round };

	pool_run(&s->pool, split_items(j.split), combine_rows, &j);
}

void kern_combine_rows(struct kern_stream *s, float *y, size_t ldy, const void *const *x, enum act_kind kind,
	const float *w, size_t top_k, size_t rows, size_t cols, bool round)
{
	struct combine_job j = { .isa = s->isa, .split = split_rows(s, rows, cols * (top_k + 1)), .y = y, .ldy = ldy,
		.rows = x, .bf16 = kind == ACT_BF16, .w = w, .top_k = top_k, .cols = cols, .round = round };

	pool_run(&s->pool, split_items(j.split), combine_rows, &j);
}
