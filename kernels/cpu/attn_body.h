/*
 * Attention for one instruction set.  The including file has chosen its vector (vec_*.h: VF, VL and v_*; VL divides 16)
 * and defined
 *   TILE_ACCS, TILE_VECS  accumulators that fit in registers, and how many of them side by side at most (powers of two)
 *   v_exp2i(t)        2^n, n being the low bits of t = n + 1.5 * 2^23
 *   v_keep(x, cnt, t, y)   lane i: t < cnt[i] ? x : y
 *   v_flush(y, x, low)     lane i: x < low ? 0 : y
 *   STEP              1: products of float32; 2: of pairs of bfloat16
 *   ATTN_OPERANDS     a file that says how operands become the 4-byte units of these products:
 *   v_mac(acc, const unit_t *a, const unit_t *b)  acc[i] += a[0] * b[i], i < VL
 *   v_mac_low         the same with the earlier element of each unit only (STEP 2)
 *   put_p, put_query, expanded_operands, query_operands, absorbed_operands
 *   query_few         does the whole query step where that is faster for few rows
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attn.h"
#include "kernels/cpu/widen.h"

#define INLINE static inline __attribute__((always_inline))

#if STEP == 2
typedef uint32_t __attribute__((may_alias)) unit_t; /* the earlier element in the low half */
#else
typedef float unit_t;
#endif

/* c[i][j] = c[i][j] * scale[i] + sum over k of a[i][k] * b[k][j] */
struct product {
	float *c;           /* [rows, ldc] */
	size_t ldc;
	const unit_t *a;    /* a[i][k] at i * ar + k * ak */
	size_t ar, ak;
	const unit_t *b;    /* [steps, ldb] */
	size_t ldb, steps;
	const float *scale; /* [rows], or NULL: c is not read, the sum starts at 0 */
	const int32_t *cnt; /* [rows], ascending: row i sums cnt[i] elements only; or NULL: steps units */
	const char *ahead;  /* what to bring into the cache meanwhile, a line with each step; or NULL */
};

/* Queries looking at a page. */
struct look {
	size_t lanes, used;  /* lanes a multiple of ATTN_LANES; queries in them */
	const unit_t *q;     /* [ksteps, lanes] */
	const unit_t *k;     /* [n, ldk] */
	const unit_t *v;     /* [ceil(n / STEP), ldv] */
	size_t ksteps, ldk, ldv, vcols; /* vcols: columns of v, a multiple of ATTN_LANES */
	const int32_t *cnt;  /* [lanes] tokens of the page that each query sees, ascending */
	float *s;            /* [n, lanes] scores, then probabilities */
	float *corr;         /* [lanes] */
	float scale;
	bool round;
	const void *next;    /* the page looked at next, or NULL; next_ld bytes a token */
	size_t next_ld;
};

#include ATTN_OPERANDS

/* e^x for x <= 0, within about 1 ulp; 0 below -87 and for -inf; NaN stays. */
INLINE VF v_exp(VF x)
{
	const VF magic = v_set1(0x1.8p23f);
	VF t = v_fma(x, v_set1(1.44269504f), magic), n = v_sub(t, magic), r, y;

	r = v_fma(n, v_set1(-0.693359375f), x); /* exact: the constant has 10 bits, n at most 7 */
	r = v_fma(n, v_set1(2.12194440e-4f), r);
	y = v_set1(1.0f / 5040);
	y = v_fma(y, r, v_set1(1.0f / 720));
	y = v_fma(y, r, v_set1(1.0f / 120));
	y = v_fma(y, r, v_set1(1.0f / 24));
	y = v_fma(y, r, v_set1(1.0f / 6));
	y = v_fma(y, r, v_set1(0.5f));
	y = v_fma(v_mul(r, r), y, r);
	y = v_add(y, v_set1(1.0f));
	return v_flush(v_mul(y, v_exp2i(t)), x, v_set1(-87.0f));
}

/* ---- products ---- */

INLINE void tile(const struct product *p, const int rows, const int vecs)
{
	VF c[TILE_ACCS];
	const unit_t *a[4], *b = p->b; /* a: rows 0, 4, 8, 12, from which the others are in reach of an address */
	const char *ahead = p->ahead ? p->ahead : (const char *)p->a;
	size_t ar = p->ar, ak = p->ak, ldb = p->ldb, common = p->cnt ? (size_t)p->cnt[0] / STEP : p->steps;
	size_t line = p->ahead ? 64 : 0;

#pragma GCC unroll 4
	for (size_t i = 0; i < 4; i++)
		a[i] = p->a + 4 * i * ar;
#pragma GCC unroll 16
	for (int i = 0; i < rows * vecs; i++)
		c[i] = p->scale ? v_mul(v_load(p->c + i / vecs * p->ldc + i % vecs * VL), v_set1(p->scale[i / vecs]))
			: v_zero();
	for (size_t k = 0; k < common; k++, b += ldb, ahead += line) {
		__builtin_prefetch(ahead, 0, 2);
#pragma GCC unroll 16
		for (int i = 0; i < rows * vecs; i++)
			c[i] = v_mac(c[i], a[i / vecs / 4] + i / vecs % 4 * ar, b + i % vecs * VL);
#pragma GCC unroll 4
		for (int i = 0; i < 4; i++)
			a[i] += ak;
	}
#pragma GCC unroll 16
	for (int i = 0; i < rows * vecs; i++)
		v_store(p->c + i / vecs * p->ldc + i % vecs * VL, c[i]);
}

#define TILE(rows, vecs) static void tile_##rows##x##vecs(const struct product *p) { tile(p, rows, vecs); }
TILE(1, 1) TILE(2, 1) TILE(4, 1) TILE(8, 1)
TILE(1, 2) TILE(2, 2) TILE(4, 2)
#if TILE_VECS >= 4
TILE(1, 4) TILE(2, 4)
#endif
#if TILE_ACCS >= 16
TILE(16, 1) TILE(8, 2) TILE(4, 4)
#endif
#undef TILE

/* What tile left out since row 0 does not sum it: the rest of the rows, from memory to memory. */
static void tile_rest(const struct product *p, size_t rows, size_t cols)
{
	size_t common = (size_t)p->cnt[0] / STEP;

	for (size_t i = 0; i < rows; i++)
		for (size_t j = 0; j < cols && (size_t)p->cnt[i] > common * STEP; j += VL) {
			VF c = v_load(p->c + i * p->ldc + j);
			size_t k = common, n = (size_t)p->cnt[i];

			for (; k < n / STEP; k++)
				c = v_mac(c, p->a + i * p->ar + k * p->ak, p->b + k * p->ldb + j);
#if STEP == 2
			if (n % STEP) /* the other element of b belongs to a token not seen: it may be NaN */
				c = v_mac_low(c, p->a + i * p->ar + k * p->ak, p->b + k * p->ldb + j);
#endif
			v_store(p->c + i * p->ldc + j, c);
		}
}

/* [log2 vecs][log2 rows] */
static void (*const tiles[3][5])(const struct product *p) = {
	{ tile_1x1, tile_2x1, tile_4x1, tile_8x1,
#if TILE_ACCS >= 16
		tile_16x1,
#endif
	},
	{ tile_1x2, tile_2x2, tile_4x2,
#if TILE_ACCS >= 16
		tile_8x2,
#endif
	},
#if TILE_VECS >= 4
	{ tile_1x4, tile_2x4,
#if TILE_ACCS >= 16
		tile_4x4,
#endif
	},
#endif
};

/* cols is a multiple of VL. */
static void product(const struct product *all, size_t rows, size_t cols)
{
	for (size_t j = 0, vecs = TILE_VECS, lv = TILE_VECS / 2; j < cols; j += vecs * VL) {
		while (vecs * VL > cols - j)
			vecs /= 2, lv--;
		for (size_t i = 0, n = TILE_ACCS / vecs; i < rows; i += n) {
			struct product p = *all;

			while (n > rows - i)
				n /= 2;
			if (p.cnt && p.cnt[i + n - 1] == 0)
				continue;
			p.c += i * p.ldc + j;
			p.a += i * p.ar;
			p.b += j;
			p.scale = p.scale ? p.scale + i : NULL;
			p.cnt = p.cnt ? p.cnt + i : NULL;
			tiles[lv][__builtin_ctzl(n)](&p);
			if (p.cnt && (size_t)p.cnt[n - 1] > (size_t)p.cnt[0] / STEP * STEP)
				tile_rest(&p, n, vecs * VL);
		}
	}
}

/* ---- queries looking at a page ---- */

/* s = k q.  Vectors of lanes that see none of the tokens are left out. */
static void look_scores(const struct look *x, size_t n)
{
	for (size_t t = 0, m, lane = 0; t < n; t += m) {
		m = n - t < ATTN_LANES ? n - t : ATTN_LANES;
		while ((size_t)x->cnt[lane + ATTN_LANES - 1] <= t)
			lane += ATTN_LANES;
		product(&(struct product){ .c = x->s + t * x->lanes + lane, .ldc = x->lanes, .a = x->k + t * x->ldk,
			.ar = x->ldk, .ak = 1, .b = x->q + lane, .ldb = x->lanes, .steps = x->ksteps,
			.ahead = x->next ? (const char *)x->next + t * x->next_ld : NULL }, m, x->lanes - lane);
	}
}

/* Scores to probabilities relative to the new maximum; corr is what the old sums are worth. */
static void look_softmax(const struct look *x, const struct attn_state *st)
{
	const VF scale = v_set1(x->scale);

	for (size_t j = 0; j < x->lanes; j += VL) {
		const int32_t *cnt = x->cnt + j;
		size_t n = (size_t)cnt[VL - 1];
		VF old = v_load(st->max + j), max = old, sum, corr;

		if (n == 0) {
			v_store(x->corr + j, v_set1(1.0f));
			continue;
		}
		for (size_t t = 0; t < n; t++)
			max = v_max(max, v_keep(v_mul(v_load(x->s + t * x->lanes + j), scale), cnt, (int32_t)t, max));
		corr = v_exp(v_sub(old, max));
		sum = v_mul(v_load(st->sum + j), corr);
		for (size_t t = 0; t < n; t += STEP) {
			VF p[2] = { v_zero(), v_zero() };
			for (size_t i = 0; i < STEP && t + i < n; i++) {
				p[i] = v_exp(v_sub(v_mul(v_load(x->s + (t + i) * x->lanes + j), scale), max));
				p[i] = v_keep(p[i], cnt, (int32_t)(t + i), v_zero());
				sum = v_add(sum, p[i]);
			}
			put_p((unit_t *)x->s + t / STEP * x->lanes + j, p[0], p[1], x->round);
		}
		v_store(st->max + j, max);
		v_store(st->sum + j, sum);
		v_store(x->corr + j, corr);
	}
}

/* Adds n tokens of a page to the state. */
static void look_page(const struct look *x, const struct attn_state *st, size_t n)
{
	look_scores(x, n);
	look_softmax(x, st);
	product(&(struct product){ .c = st->acc, .ldc = st->ld, .a = (const unit_t *)x->s, .ar = 1, .ak = x->lanes,
		.b = x->v, .ldb = x->ldv, .scale = x->corr, .cnt = x->cnt }, x->used, x->vcols);
}

static void state_clear(const struct attn_state *st, size_t lanes)
{
	memset(st->acc, 0, lanes * st->ld * sizeof(float));
	memset(st->sum, 0, lanes * sizeof(float));
	for (size_t i = 0; i < lanes; i++)
		st->max[i] = -INFINITY;
}

/* ---- expanded ---- */

/* One tile's part of the scratch: queries and state. */
struct tile_state {
	unit_t *q; /* [ksteps, ATTN_TILE] */
	struct attn_state st;
};

static struct tile_state tile_at(const struct expanded_scratch *x, size_t i)
{
	return (struct tile_state){ (unit_t *)x->q + i * ATTN_TILE * x->kdim,
		{ x->state.acc + i * ATTN_TILE * x->state.ld, x->state.ld,
		x->state.max + i * ATTN_TILE, x->state.sum + i * ATTN_TILE } };
}

static void expanded_start(const struct attn_task *t, const struct expanded_scratch *x)
{
	const struct attn_shape *a = t->shape;

	for (size_t i = 0; i * ATTN_TILE < t->rows; i++) {
		struct tile_state tile = tile_at(x, i);
		state_clear(&tile.st, ATTN_TILE);
		memset(tile.q, 0, x->kdim * ATTN_TILE * sizeof(unit_t));
		for (size_t r = 0; r < ATTN_TILE && i * ATTN_TILE + r < t->rows; r++)
			put_query(t->isa, tile.q + r, ATTN_TILE, t->seg->q + (t->row0 + i * ATTN_TILE + r) * t->seg->ldq
				+ t->head * x->kdim, x->kdim, a->round, x->row);
	}
}

static void expanded_end(const struct attn_task *t, const struct expanded_scratch *x)
{
	const struct attn_shape *a = t->shape;

	for (size_t r = 0; r < t->rows; r++) {
		float *acc = x->state.acc + r * x->state.ld, *out = t->seg->out + (t->row0 + r) * t->seg->ldo +
			t->head * a->v;
		float inv = 1.0f / x->state.sum[r];
		for (size_t j = 0; j < a->v; j += VL)
			v_store(acc + j, v_mul(v_load(acc + j), v_set1(inv)));
		memcpy(out, acc, a->v * sizeof(float));
		if (a->round)
			t->isa->round(out, a->v);
	}
}

static void attn_expanded(const struct attn_task *t)
{
	const struct attn_shape *a = t->shape;
	const struct kv_pages *kv = &t->seg->kv;
	struct expanded_scratch x;
	size_t pos0 = t->seg->pos0 + t->row0, last = pos0 + t->rows - 1;
	int32_t cnt[ATTN_TILE];

	expanded_layout(&x, t->scratch, a, kv, t->rows);
	expanded_start(t, &x);
	for (size_t p = 0; p * kv->page <= last; p++) {
		struct look l = { .lanes = ATTN_TILE, .ldv = x.ldv, .vcols = round_up(a->v, ATTN_LANES), .cnt = cnt,
			.s = x.s, .corr = x.corr, .scale = a->scale, .round = a->round };
		size_t n = attn_seen(last, p, kv->page);
		attn_expand_page(t, &x, p, n, a->round && STEP == 1);
		expanded_operands(t, &x, n, &l);
		for (size_t i = 0; i * ATTN_TILE < t->rows; i++) {
			struct tile_state tile = tile_at(&x, i);
			l.used = t->rows - i * ATTN_TILE < ATTN_TILE ? t->rows - i * ATTN_TILE : ATTN_TILE;
			for (size_t r = 0; r < ATTN_TILE; r++) /* lanes not in use do as the last one */
				cnt[r] = (int32_t)attn_seen(pos0 + i * ATTN_TILE + (r < l.used ? r : l.used - 1), p,
					kv->page);
			l.q = tile.q;
			if (cnt[ATTN_TILE - 1])
				look_page(&l, &tile.st, (size_t)cnt[ATTN_TILE - 1]);
		}
	}
	expanded_end(t, &x);
}

/* ---- absorbed ---- */

/* acc = acc * e^(max - new max) + part * e^(part's max - new max), part after part. */
static void absorbed_merge(const struct attn_task *t)
{
	const struct attn_state *st = &t->state;
	float max = st->max[0], sum = st->sum[0], both[2 * VL];

	for (size_t i = 0; i < t->merge; i++) {
		const struct attn_state *part = t->parts + i;
		const float *acc = part->acc + t->lane0 * part->ld;
		float pmax = part->max[t->lane0], top = pmax > max ? pmax : max;
		VF old = v_exp(v_set1(max - top)), add = v_exp(v_set1(pmax - top));
		v_store(both, old);
		v_store(both + VL, add);
		sum = sum * both[0] + part->sum[t->lane0] * both[VL];
		max = top;
		for (size_t j = 0; j < t->shape->lora; j += VL)
			v_store(st->acc + j, v_fma(v_load(acc + j), add, v_mul(v_load(st->acc + j), old)));
	}
	st->max[0] = max;
	st->sum[0] = sum;
}

static void absorbed_query(const struct attn_task *t)
{
	const struct attn_shape *a = t->shape;
	struct mat w = mat_rows(a->kv_b, t->head * (a->nope + a->v), a->nope);
	struct product p = { .c = t->latent, .ldc = t->ld };
	struct query_scratch x;

	if (!query_few(t, &w)) {
		query_layout(&x, t->scratch, a, t->rows);
		query_operands(t, &x, &w, &p);
		product(&p, t->rows, round_up(a->lora, ATTN_LANES));
	}
	for (size_t i = 0; i < t->rows && a->round; i++)
		t->isa->round(t->latent + i * t->ld, a->lora);
}

static void absorbed_pages(const struct attn_task *t)
{
	const struct attn_shape *a = t->shape;
	const struct kv_pages *kv = &t->seg->kv;
	struct absorbed_scratch x;
	int32_t cnt[ATTN_LANES];

	absorbed_layout(&x, t->scratch, a, kv);
	state_clear(&t->state, ATTN_LANES);
	memset(x.q, 0, x.kdim * ATTN_LANES * sizeof(unit_t));
	for (size_t i = 0; i < t->lanes; i++)
		put_query(t->isa, (unit_t *)x.q + i, ATTN_LANES, t->q + i * t->ld, x.kdim, a->round, x.row);
	for (size_t p = t->page0; p < t->page0 + t->pages; p++) {
		struct look l = { .lanes = ATTN_LANES, .used = t->lanes, .q = x.q,
			.vcols = round_up(a->lora, ATTN_LANES),
			.cnt = cnt, .s = x.s, .corr = x.corr, .scale = a->scale, .round = a->round };
		for (size_t i = 0; i < ATTN_LANES; i++) {
			size_t lane = t->lane0 + (i < t->lanes ? i : t->lanes - 1);
			cnt[i] = (int32_t)attn_seen(t->seg->pos0 + t->row0 + lane / a->heads, p, kv->page);
		}
		if (p + 1 < t->page0 + t->pages) {
			l.next = kv_row(kv, p + 1, 0);
			l.next_ld = kv->row_ld * (kv->type == DT_BF16 ? 2 : 4);
		}
		absorbed_operands(t, &x, p, (size_t)cnt[ATTN_LANES - 1], &l);
		look_page(&l, &t->state, (size_t)cnt[ATTN_LANES - 1]);
	}
}

static void attn_absorbed(const struct attn_task *t)
{
	switch (t->step) {
	case ATTN_QUERY:
		absorbed_query(t);
		break;
	case ATTN_PAGES:
		absorbed_pages(t);
		break;
	case ATTN_MERGE:
		absorbed_merge(t);
		break;
	}
}
