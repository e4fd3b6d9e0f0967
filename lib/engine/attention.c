/* ATTN-0 (projections before core attention) and ATTN-1 (core attention, output projection, gate). */
#include <string.h>

#include "engine/internal.h"

/* One row of the cache, the normed latent and the rotated key part, in the cache's type. */
static void write_row(const struct engine *e, unsigned char *dst, const float *src, size_t dim)
{
	if (!e->round) {
		memcpy(dst, src, dim * sizeof(float));
		return;
	}
	for (size_t i = 0; i < dim; i++)
		((uint16_t *)(void *)dst)[i] = f32_to_bf16(src[i]);
}

static void write_cache(struct engine *e, size_t layer, const struct batch *b)
{
	size_t dim = engine_kv_dim(e), bytes = dim * dtype_size(engine_kv_type(e)), row = 0;

	for (size_t i = 0; i < b->count; i++) {
		const struct segment *s = &b->segs[i];

		for (size_t r = 0; r < s->rows; r++, row++) {
			size_t pos = batch_pos(b, s) + r;
			unsigned char *page = s->kv->pages[pos / KV_BLOCK];

			write_row(e, page + (layer * KV_BLOCK + pos % KV_BLOCK) * bytes, e->kva + row * dim, dim);
		}
	}
}

/* q and the latent rows from the normed residual stream: the two products that read it go together. */
static void project(struct engine *e, const struct layer *l, size_t rows)
{
	const struct config *c = e->c;
	const struct mat *first = c->q_lora ? &l->q_a : &l->q;
	enum act_kind kind = engine_act(e, first), kv_kind = engine_act(e, &l->kv_a);
	struct act x, y;

	kern_rmsnorm(e->s, e->x, c->hidden, e->h, c->hidden, &l->attn_norm, (float)c->eps, rows, c->hidden, e->round);
	kern_pack(e->s, kind, c->ue8m0, e->x, rows, c->hidden, c->hidden, e->packed, &x);
	e->gemms[0] = (struct gemm){ .y = c->q_lora ? e->qa : e->q, .ldy = first->rows, .x = &x, .w = first,
		.rows = rows, .round = e->round };
	e->gemms[1] = (struct gemm){ .y = e->kva, .ldy = l->kv_a.rows, .x = &x, .w = &l->kv_a, .rows = rows,
		.round = e->round };
	if (kv_kind != kind) {
		kern_pack(e->s, kv_kind, c->ue8m0, e->x, rows, c->hidden, c->hidden, e->packed2, &y);
		e->gemms[1].x = &y;
	}
	engine_gemm(e, 2);
	if (!c->q_lora)
		return;
	kern_rmsnorm(e->s, e->qa, c->q_lora, e->qa, c->q_lora, &l->q_a_norm, (float)c->eps, rows, c->q_lora, e->round);
	engine_linear(e, e->q, e->qa, &l->q_b, rows, e->packed, e->round);
}

void stage_attn0(struct engine *e, const struct layer *l, size_t n, struct batch *b)
{
	const struct config *c = e->c;
	size_t head = c->nope + c->rope, ldk = c->kv_lora + c->rope;

	project(e, l, b->rows);
	kern_rmsnorm(e->s, e->kva, ldk, e->kva, ldk, &l->kv_a_norm, (float)c->eps, b->rows, c->kv_lora, e->round);
	kern_rope(e->s, e->q + c->nope, c->heads * head, head, c->heads, c->rope, e->cs, b->rows, e->round);
	kern_rope(e->s, e->kva + c->kv_lora, ldk, 0, 1, c->rope, e->cs, b->rows, e->round);
	engine_show(e, b, "q", n, DT_F32, e->q, c->heads * head);
	engine_show(e, b, "kv", n, DT_F32, e->kva, ldk);
	write_cache(e, n, b);
}

/* Describes the segments of one form to the kernel, with the page pointers of layer n; returns how many there are. */
static size_t describe(struct engine *e, size_t n, const struct batch *b, bool absorbed)
{
	const struct config *c = e->c;
	size_t ldq = c->heads * (c->nope + c->rope), ldo = c->heads * c->v, dim = engine_kv_dim(e);
	size_t layer_bytes = n * KV_BLOCK * dim * dtype_size(engine_kv_type(e)), row = 0, count = 0;
	void **pages = e->pages;

	for (size_t i = 0; i < b->count; i++) {
		const struct segment *s = &b->segs[i];
		size_t used = kv_blocks_for(batch_pos(b, s) + s->rows);

		if (s->absorbed == absorbed && s->rows) {
			for (size_t p = 0; p < used; p++)
				pages[p] = (unsigned char *)s->kv->pages[p] + layer_bytes;
			e->attn[count++] = (struct attn_seg){ .q = e->q + row * ldq, .ldq = ldq,
				.out = e->o + row * ldo, .ldo = ldo, .rows = s->rows, .pos0 = batch_pos(b, s),
				.kv = { .pages = pages, .page = KV_BLOCK, .row_ld = dim, .type = engine_kv_type(e) } };
			pages += used;
		}
		row += s->rows;
	}
	return count;
}

static void core_attention(struct engine *e, const struct layer *l, size_t n, const struct batch *b)
{
	const struct config *c = e->c;
	struct attn_shape a = { .heads = c->heads, .nope = c->nope, .rope = c->rope, .v = c->v, .lora = c->kv_lora,
		.scale = (float)config_softmax_scale(c), .kv_b = &l->kv_b, .round = e->round };
	size_t count = describe(e, n, b, false);

	profile_attn(e->profile, &a, e->attn, count, false);
	if (count)
		kern_attn_expanded(e->s, &a, e->attn, count);
	count = describe(e, n, b, true);
	profile_attn(e->profile, &a, e->attn, count, true);
	if (count)
		kern_attn_absorbed(e->s, &a, e->attn, count);
}

static void gate(struct engine *e, const struct layer *l, size_t n, const struct batch *b)
{
	const struct config *c = e->c;
	struct route r = { .score = c->score, .method = c->topk, .experts = c->experts, .top_k = c->top_k,
		.groups = c->groups, .topk_groups = c->topk_groups, .normalise = c->norm_topk,
		.scale = (float)c->route_scale, .bias = l->bias };

	/* The gate's logits are not rounded: experts are chosen in float32. */
	engine_linear(e, e->router, e->x, &l->router, b->rows, e->packed, false);
	kern_route(e->s, &r, e->router, b->rows, e->ids, e->weights);
	engine_show(e, b, "router.logits", n, DT_F32, e->router, c->experts);
	engine_show(e, b, "router.ids", n, DT_U32, e->ids, c->top_k);
	engine_show(e, b, "router.weights", n, DT_F32, e->weights, c->top_k);
}

void stage_attn1(struct engine *e, const struct layer *l, size_t n, struct batch *b)
{
	const struct config *c = e->c;

	core_attention(e, l, n, b);
	engine_show(e, b, "attn_core", n, DT_F32, e->o, c->heads * c->v);
	engine_linear(e, e->t, e->o, &l->o, b->rows, e->packed2, e->round);
	engine_show(e, b, "attn_out", n, DT_F32, e->t, c->hidden);
	kern_add(e->s, e->h, e->t, b->rows * c->hidden, e->round);
	engine_show(e, b, "attn", n, DT_F32, e->h, c->hidden);
	kern_rmsnorm(e->s, e->x, c->hidden, e->h, c->hidden, &l->ffn_norm, (float)c->eps, b->rows, c->hidden, e->round);
	if (l->moe)
		gate(e, l, n, b);
}
