/*
 * Expanded attention: cuts segments into tasks of one head and up to EXPANDED_ROWS rows.  A task goes through the pages
 * once, makes each page's keys and values for its head and shows them to all its rows.
 */
#include <string.h>

#include "kernels/cpu/attn.h"

enum { EXPANDED_ROWS = 4096 };

/* Columns [0, lora) of the page's rows 0 .. n. */
static struct act page_act(const struct attn_task *t, const struct expanded_scratch *x, size_t p, size_t n)
{
	const struct kv_pages *kv = &t->seg->kv;
	size_t lora = t->shape->lora, ld = round_up(lora, 128);
	struct act act = { .kind = ACT_F32, .rows = n, .cols = lora, .ld = kv->row_ld, .data = kv_row(kv, p, 0) };

	if (kv->type == DT_F32)
		return act;
	act.kind = ACT_BF16;
	if (ld == lora)
		return act;
	for (size_t i = 0; i < n; i++) { /* packed rows are padded with zeros */
		uint16_t *row = (uint16_t *)x->act + i * ld;
		memcpy(row, kv_row(kv, p, i), lora * sizeof(*row));
		memset(row + lora, 0, (ld - lora) * sizeof(*row));
	}
	act.data = x->act;
	act.ld = ld;
	return act;
}

void attn_expand_page(const struct attn_task *t, const struct expanded_scratch *x, size_t p, size_t n, bool round)
{
	const struct attn_shape *a = t->shape;
	const struct kv_pages *kv = &t->seg->kv;
	struct act act = page_act(t, x, p, n);
	struct mat wk = mat_rows(a->kv_b, t->head * (a->nope + a->v), a->nope);
	struct mat wv = mat_rows(a->kv_b, t->head * (a->nope + a->v) + a->nope, a->v);
	struct gemm k = { .y = x->k, .ldy = x->ldk, .x = &act, .w = &wk, .rows = n, .round = round };
	struct gemm v = { .y = x->v, .ldy = x->ldv, .x = &act, .w = &wv, .rows = n, .round = round };

	t->isa->gemm(&k, 0, n, 0, a->nope);
	t->isa->gemm(&v, 0, n, 0, a->v);
	for (size_t i = 0; i < n; i++) {
		float *pe = x->k + i * x->ldk + a->nope;
		const void *row = kv_row(kv, p, i);
		if (kv->type == DT_F32) {
			memcpy(pe, (const float *)row + a->lora, a->rope * sizeof(*pe));
			if (round)
				t->isa->round(pe, a->rope);
		} else {
			for (size_t j = 0; j < a->rope; j++)
				pe[j] = bf16_to_f32(((const uint16_t *)row)[a->lora + j]);
		}
	}
}

size_t kern_attn_bytes(const struct kern_stream *s, const struct attn_shape *a, const struct kv_pages *kv, size_t rows,
	size_t *shared)
{
	struct expanded_scratch x;
	size_t n = expanded_layout(&x, NULL, a, kv, rows < EXPANDED_ROWS ? rows : EXPANDED_ROWS);
	size_t m = attn_absorbed_bytes(s, a, kv, shared);

	return n > m ? n : m;
}

struct expanded {
	struct kern_stream *stream;
	const struct attn_shape *shape;
	const struct attn_seg *segs;
	size_t count, rows; /* rows of a task at most */
};

static size_t row_cuts(const struct expanded *e, const struct attn_seg *seg)
{
	return (seg->rows + e->rows - 1) / e->rows;
}

static void expanded_item(void *arg, size_t i, int worker)
{
	const struct expanded *e = arg;
	const struct attn_seg *seg = e->segs;
	struct attn_task t = { .isa = kern_isa(e->stream), .shape = e->shape };
	struct expanded_scratch x;

	for (; i >= row_cuts(e, seg) * e->shape->heads; seg++)
		i -= row_cuts(e, seg) * e->shape->heads;
	t.seg = seg;
	t.head = i % e->shape->heads;
	t.row0 = i / e->shape->heads * e->rows;
	t.rows = seg->rows - t.row0 < e->rows ? seg->rows - t.row0 : e->rows;
	t.scratch = kern_scratch(e->stream, worker, expanded_layout(&x, NULL, t.shape, &seg->kv, t.rows));
	t.isa->attn_expanded(&t);
}

void kern_attn_expanded(struct kern_stream *s, const struct attn_shape *a, const struct attn_seg *segs, size_t count)
{
	struct expanded e = { .stream = s, .shape = a, .segs = segs, .count = count, .rows = EXPANDED_ROWS };
	size_t items, wanted = (size_t)kern_threads(s);

	if (wanted > 1)
		wanted *= 2;
	/* cuts through rows make pages be expanded again: only as many as keep the threads busy */
	for (;; e.rows /= 2) {
		items = 0;
		for (size_t i = 0; i < count; i++)
			items += row_cuts(&e, segs + i) * a->heads;
		if (items >= wanted || e.rows == ATTN_TILE)
			break;
	}
	kern_parallel(s, items, expanded_item, &e);
}
