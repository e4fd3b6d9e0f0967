/*
 * Absorbed attention.  Rows of all segments are taken CHUNK_ROWS at a time; for each chunk
 *   1. every head's query is taken into the latent space: q_abs = W_uk^T q_nope, beside it q_pe;
 *   2. (row, head) pairs of a segment, 16 at a time, look at the cache, block by block.  Blocks are computed in any
 *      order, a wave of them at a time, then merged in ascending order;
 *   3. every head's answer is taken out of it: out = W_uv (sum of p c / sum of p).
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attn.h"

enum {
	CHUNK_ROWS = 32,
	WAVE = 8, /* blocks in flight for each thread */
};

/* Rows of one segment within the chunk. */
struct piece {
	const struct attn_seg *seg;
	size_t row0, rows, first; /* first: index within the chunk */
};

/* One block of pages for up to ATTN_LANES pairs of a piece. */
struct block {
	const struct piece *piece;
	size_t lane0, lanes, page0, pages;
};

/* Consecutive blocks of a wave with the same lanes. */
struct run {
	size_t first, count;
};

struct absorbed {
	struct kern_stream *stream;
	const struct isa *isa;
	const struct attn_shape *shape;
	struct piece pieces[CHUNK_ROWS];
	size_t npieces, rows;
	float *q;                /* [rows, heads, ldq]: lora + rope */
	size_t ldq;
	struct attn_state state; /* [rows * heads] */
	size_t wave;             /* most blocks in flight */
	struct attn_state *part; /* [wave], [ATTN_LANES] each */
	struct block *block;     /* [wave] */
	struct run *run;         /* [wave] */
	size_t nblocks, nruns;
};

static size_t absorbed_lay(struct absorbed *b, void *area)
{
	const struct attn_shape *a = b->shape;
	uintptr_t at = (uintptr_t)area;
	size_t lanes = CHUNK_ROWS * a->heads, ld = attn_ld(a->lora);
	float *acc, *max, *sum;

	b->ldq = attn_ld(a->lora + a->rope);
	b->q = attn_carve(&at, lanes * b->ldq);
	b->state.ld = ld;
	b->state.acc = attn_carve(&at, lanes * ld);
	b->state.max = attn_carve(&at, lanes);
	b->state.sum = attn_carve(&at, lanes);
	b->part = attn_carve(&at, b->wave * sizeof(*b->part) / 4);
	b->block = attn_carve(&at, b->wave * sizeof(*b->block) / 4);
	b->run = attn_carve(&at, b->wave * sizeof(*b->run) / 4);
	acc = attn_carve(&at, b->wave * ATTN_LANES * ld);
	max = attn_carve(&at, b->wave * ATTN_LANES);
	sum = attn_carve(&at, b->wave * ATTN_LANES);
	for (size_t i = 0; area && i < b->wave; i++)
		b->part[i] = (struct attn_state){ acc + i * ATTN_LANES * ld, ld, max + i * ATTN_LANES,
			sum + i * ATTN_LANES };
	return at - (uintptr_t)area;
}

static void query_item(void *arg, size_t head, int worker)
{
	struct absorbed *b = arg;
	const struct attn_shape *a = b->shape;
	size_t ld = a->heads * b->ldq;
	float *y = b->q + head * b->ldq;
	const float *queries[CHUNK_ROWS];
	struct query_scratch x;
	struct attn_task t = { .isa = b->isa, .shape = a, .step = ATTN_QUERY, .rows = b->rows, .head = head,
		.queries = queries, .latent = y, .ld = ld };

	for (size_t i = 0; i < b->npieces; i++)
		for (size_t r = 0; r < b->pieces[i].rows; r++)
			queries[b->pieces[i].first + r] = b->pieces[i].seg->q
				+ (b->pieces[i].row0 + r) * b->pieces[i].seg->ldq + head * (a->nope + a->rope);
	t.scratch = kern_scratch(b->stream, worker, query_layout(&x, NULL, a, b->rows));
	b->isa->attn_absorbed(&t);
	for (size_t r = 0; r < b->rows; r++)
		memcpy(y + r * ld + a->lora, queries[r] + a->nope, a->rope * sizeof(*y));
}

static void block_item(void *arg, size_t i, int worker)
{
	struct absorbed *b = arg;
	const struct block *k = b->block + i;
	size_t lane = k->piece->first * b->shape->heads + k->lane0;
	struct absorbed_scratch x;
	struct attn_task t = { .isa = b->isa, .shape = b->shape, .step = ATTN_PAGES, .seg = k->piece->seg,
		.row0 = k->piece->row0, .lane0 = k->lane0, .lanes = k->lanes, .page0 = k->page0, .pages = k->pages,
		.q = b->q + lane * b->ldq, .ld = b->ldq, .state = b->part[i] };

	t.scratch = kern_scratch(b->stream, worker, absorbed_layout(&x, NULL, b->shape, &t.seg->kv));
	b->isa->attn_absorbed(&t);
}

/* One pair of a run: its blocks, as far as its position sees any of them, are added to its state. */
static void merge_item(void *arg, size_t i, int worker)
{
	struct absorbed *b = arg;
	const struct run *run = b->run + i / ATTN_LANES;
	const struct block *k = b->block + run->first;
	size_t pair = k->lane0 + i % ATTN_LANES, lane = k->piece->first * b->shape->heads + pair;
	size_t pos = k->piece->seg->pos0 + k->piece->row0 + pair / b->shape->heads;
	struct attn_task t = { .isa = b->isa, .shape = b->shape, .step = ATTN_MERGE, .lane0 = i % ATTN_LANES,
		.parts = b->part + run->first, .state = { b->state.acc + lane * b->state.ld, b->state.ld,
			b->state.max + lane, b->state.sum + lane } };

	(void)worker;
	if (i % ATTN_LANES >= k->lanes)
		return;
	while (t.merge < run->count && k[t.merge].page0 * k->piece->seg->kv.page <= pos)
		t.merge++;
	if (t.merge)
		b->isa->attn_absorbed(&t);
}

/* Sums into averages; BF16 weights want BF16 rows. */
static void answer_rows(struct absorbed *b, size_t head, struct act *x, uint16_t *packed)
{
	size_t lora = b->shape->lora, ld = round_up(lora, 128), heads = b->shape->heads;
	bool pack = b->shape->round && b->shape->kv_b->type == DT_BF16;

	for (size_t r = 0; r < b->rows; r++) {
		float *acc = b->state.acc + (r * heads + head) * b->state.ld;
		float inv = 1.0f / b->state.sum[r * heads + head];
		for (size_t j = 0; j < lora; j++)
			acc[j] *= inv;
		if (b->shape->round)
			b->isa->round(acc, lora);
		if (pack) {
			b->isa->pack_bf16(packed + r * ld, acc, lora);
			memset(packed + r * ld + lora, 0, (ld - lora) * sizeof(*packed));
		}
	}
	*x = (struct act){ .kind = ACT_F32, .rows = b->rows, .cols = lora, .ld = heads * b->state.ld,
		.data = b->state.acc + head * b->state.ld };
	if (pack)
		*x = (struct act){ .kind = ACT_BF16, .rows = b->rows, .cols = lora, .ld = ld, .data = packed };
}

static size_t answer_bytes(const struct attn_shape *a, size_t rows)
{
	return rows * (round_up(a->lora, 128) * sizeof(uint16_t) + a->v * sizeof(float));
}

static void answer_item(void *arg, size_t head, int worker)
{
	struct absorbed *b = arg;
	const struct attn_shape *a = b->shape;
	struct mat w = mat_rows(a->kv_b, head * (a->nope + a->v) + a->nope, a->v);
	size_t packed = round_up(a->lora, 128) * sizeof(uint16_t);
	char *scratch = kern_scratch(b->stream, worker, answer_bytes(a, b->rows));
	float *y = (float *)(void *)(scratch + b->rows * packed); /* [rows, v] */
	struct act act;
	struct gemm g = { .y = y, .ldy = a->v, .x = &act, .w = &w, .rows = b->rows, .round = a->round };

	answer_rows(b, head, &act, (uint16_t *)(void *)scratch);
	b->isa->gemm(&g, 0, b->rows, 0, a->v);
	for (size_t i = 0; i < b->npieces; i++)
		for (size_t r = 0; r < b->pieces[i].rows; r++) {
			const struct attn_seg *seg = b->pieces[i].seg;
			memcpy(seg->out + (b->pieces[i].row0 + r) * seg->ldo + head * a->v,
				y + (b->pieces[i].first + r) * a->v, a->v * sizeof(*y));
		}
}

static void wave_run(struct absorbed *b)
{
	if (!b->nblocks)
		return;
	kern_parallel(b->stream, b->nblocks, block_item, b);
	kern_parallel(b->stream, b->nruns * ATTN_LANES, merge_item, b);
	b->nblocks = b->nruns = 0;
}

/* All blocks of one group of lanes. */
static void lanes_run(struct absorbed *b, const struct piece *p, size_t lane0, size_t lanes)
{
	size_t last = p->seg->pos0 + p->row0 + (lane0 + lanes - 1) / b->shape->heads;
	size_t pages = last / p->seg->kv.page + 1;

	for (size_t page = 0; page < pages; page += ATTN_BLOCK) {
		if (b->nblocks == b->wave)
			wave_run(b);
		if (page == 0 || b->nblocks == 0)
			b->run[b->nruns++] = (struct run){ b->nblocks, 0 };
		b->run[b->nruns - 1].count++;
		b->block[b->nblocks++] = (struct block){ p, lane0, lanes, page,
			pages - page < ATTN_BLOCK ? pages - page : ATTN_BLOCK };
	}
}

static void chunk_run(struct absorbed *b)
{
	size_t all = b->rows * b->shape->heads;

	if (!all)
		return;
	memset(b->state.acc, 0, all * b->state.ld * sizeof(float));
	memset(b->state.sum, 0, all * sizeof(float));
	for (size_t i = 0; i < all; i++)
		b->state.max[i] = -INFINITY;
	kern_parallel(b->stream, b->shape->heads, query_item, b);
	for (size_t i = 0; i < b->npieces; i++) {
		size_t pairs = b->pieces[i].rows * b->shape->heads;
		for (size_t lane = 0; lane < pairs; lane += ATTN_LANES)
			lanes_run(b, b->pieces + i, lane, pairs - lane < ATTN_LANES ? pairs - lane : ATTN_LANES);
	}
	wave_run(b);
	kern_parallel(b->stream, b->shape->heads, answer_item, b);
	b->npieces = b->rows = 0;
}

size_t attn_absorbed_bytes(const struct kern_stream *s, const struct attn_shape *a, const struct kv_pages *kv,
	size_t *shared)
{
	struct absorbed b = { .shape = a, .wave = WAVE * (size_t)kern_threads(s) };
	struct query_scratch q;
	struct absorbed_scratch x;
	size_t need[] = { query_layout(&q, NULL, a, CHUNK_ROWS),
		absorbed_layout(&x, NULL, a, kv), answer_bytes(a, CHUNK_ROWS) };

	*shared = absorbed_lay(&b, NULL);
	for (size_t i = 1; i < ARRAY_LEN(need); i++)
		need[0] = need[i] > need[0] ? need[i] : need[0];
	return need[0];
}

void kern_attn_absorbed(struct kern_stream *s, const struct attn_shape *a, const struct attn_seg *segs, size_t count)
{
	struct absorbed b = { .stream = s, .isa = kern_isa(s), .shape = a, .wave = WAVE * (size_t)kern_threads(s) };

	absorbed_lay(&b, kern_scratch(s, kern_threads(s), absorbed_lay(&b, NULL)));
	for (size_t i = 0; i < count; i++)
		for (size_t row = 0, n; row < segs[i].rows; row += n) {
			n = segs[i].rows - row < CHUNK_ROWS - b.rows ? segs[i].rows - row : CHUNK_ROWS - b.rows;
			b.pieces[b.npieces++] = (struct piece){ segs + i, row, n, b.rows };
			b.rows += n;
			if (b.rows == CHUNK_ROWS)
				chunk_run(&b);
		}
	chunk_run(&b);
}
