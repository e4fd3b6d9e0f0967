/*
 * Matrix products in tiles, over what the including file defines:
 *
 *   ELEM, STEP        type of a packed element, elements in one operand
 *   OPERAND           a vector of STEP elements; op_load(const ELEM *)
 *   op_dot(acc, x, w) acc (VF) plus the products of two operands, lane by lane
 *   F8_UNITS          operands that op_f8 fills from STEP * F8_UNITS codes; F8_FACTOR: what its values lack
 *   SRC_LIST          weights that are read where they lie: SRC_F8 and others, op_src(src, OPERAND[], const uint8_t *)
 *   pack_act, pack_weight: a piece of a row as elements, padded with zeros to a multiple of STEP
 *   TILE_M, TILE_N    the tile of plain products, BLOCK_M, BLOCK_N: of those scaled by blocks; DIRECT_M
 *   SET(name)         the name of the product made
 *
 * The order of a sum, the same in every path: lane j of the accumulator of (row, weight row) takes the elements that
 * fall to it step by step; with blocks of scales the lanes of a block's 128 columns are summed from zero, then added as
 * fma(lane, s_x * s_w, acc).  In the end the lanes are summed by v_sum4's tree.  Nothing else is ever added, so that
 * neither the tile's shape nor its place matters; columns past the end are zeros up to a multiple of STEP in all paths.
 *
 * Few rows (DIRECT): weights are converted in registers on their way from memory.  Many: a panel of weights and one of
 * rows are packed into the desk, KC columns at a time, and all tiles of the panels are worked through; the accumulators
 * rest in the desk meanwhile.
 */
#include <string.h>

#include "kernels/cpu/widen.h"

#define INLINE static inline __attribute__((always_inline))
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL /* not a matter of results, but of minutes of compiling */
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

enum {
	PANEL_M = 64, PANEL_N = 64,
	KC = 2048 / sizeof(ELEM),
	LD = KC + 64 / sizeof(ELEM), /* not a power of two: rows must not fall on the same lines of the cache */
	X_ELEMS = 327680 / sizeof(ELEM),
	X_PIECE = 16384 / sizeof(ELEM),
	M_MOST = 8, N_MOST = 4,
	AHEAD = 4096, /* bytes ahead to ask for, into the second cache: the first can wait for few lines at a time */
};

struct desk {
	ELEM x[X_ELEMS];                       /* rows: [PANEL_M, LD], or of all columns when few */
	ELEM w[PANEL_N * LD];
	float spill[PANEL_M * PANEL_N * VL];
	float s[PANEL_M * 64];                 /* s_x * s_w by row and block */
};
_Static_assert(sizeof(struct desk) <= ISA_DESK, "the desk is too small");
_Static_assert(X_ELEMS >= PANEL_M * LD && X_ELEMS / FP8_BLOCK <= PANEL_M * 64, "rows do not fit");

struct tile {
	const ELEM *x;       /* [m, ldx] from column k on */
	size_t ldx;
	const ELEM *w;       /* [n, LD] from column k on; NULL when direct */
	const struct gemm *g;
	size_t row;          /* direct: first weight row */
	const float *s;      /* [m, lds] by blocks from column k on, or NULL */
	size_t lds;
	size_t k, len;       /* columns [k, k + len), k a multiple of 128 */
	float *spill;        /* [m, PANEL_N, VL] */
	bool load, keep;     /* start from the spilled sums, leave them there */
	float *y;            /* [m, ldy] */
};

INLINE void step_packed(const size_t M, const size_t N, VF (*acc)[N_MOST], const ELEM *x, size_t ldx,
	const ELEM *w, size_t ldw)
{
	OPERAND wv[N_MOST], xv;

	UNROLL for (size_t n = 0; n < N; n++)
		wv[n] = op_load(w + n * ldw);
	UNROLL for (size_t m = 0; m < M; m++) {
		xv = op_load(x + m * ldx);
		UNROLL for (size_t n = 0; n < N; n++)
			acc[m][n] = op_dot(acc[m][n], xv, wv[n]);
	}
}

INLINE void steps_packed(const size_t M, const size_t N, VF (*acc)[N_MOST], const ELEM *x, size_t ldx,
	const ELEM *w, size_t ldw, size_t steps)
{
	for (size_t i = 0; i < steps; i++)
		step_packed(M, N, acc, x + i * STEP, ldx, w + i * STEP, ldw);
}

/* The same for a whole block. */
INLINE void block_packed(const size_t M, const size_t N, VF (*acc)[N_MOST], const ELEM *x, size_t ldx,
	const ELEM *w, size_t ldw)
{
	UNROLL for (size_t i = 0; i < FP8_BLOCK / STEP; i++)
		step_packed(M, N, acc, x + i * STEP, ldx, w + i * STEP, ldw);
}

/* One whole block of 128 columns, the weights taken from memory; `ahead` bytes further lies what is wanted next. */
INLINE void steps_direct(const size_t M, const size_t N, const enum src src, VF (*acc)[N_MOST], const ELEM *x,
	size_t ldx, const uint8_t *p, size_t ldp, size_t ahead)
{
	const size_t units = src == SRC_F8 ? F8_UNITS : 1, bytes = FP8_BLOCK * src_size(src);

	UNROLL for (size_t n = 0; n < N; n++)
		UNROLL for (size_t i = 0; i < bytes; i += 64)
			_mm_prefetch((const char *)p + n * ldp + ahead + i, _MM_HINT_T1);
	UNROLL for (size_t i = 0; i < FP8_BLOCK / STEP; i += units) {
		OPERAND wv[N_MOST][F8_UNITS];

		UNROLL for (size_t n = 0; n < N; n++)
			op_src(src, wv[n], p + n * ldp + i * STEP * src_size(src));
		UNROLL for (size_t u = 0; u < units; u++)
			UNROLL for (size_t m = 0; m < M; m++) {
				OPERAND xv = op_load(x + m * ldx + (i + u) * STEP);

				UNROLL for (size_t n = 0; n < N; n++)
					acc[m][n] = op_dot(acc[m][n], xv, wv[n][u]);
			}
	}
}

INLINE void scale_block(const size_t M, const size_t N, VF (*acc)[N_MOST], VF (*dot)[N_MOST], const float *s,
	size_t lds)
{
	UNROLL for (size_t m = 0; m < M; m++)
		UNROLL for (size_t n = 0; n < N; n++) {
			acc[m][n] = v_fma(dot[m][n], v_set1(s[m * lds]), acc[m][n]);
			dot[m][n] = v_zero();
		}
}

INLINE void finish(const size_t M, const size_t N, VF (*acc)[N_MOST], const struct tile *t)
{
	if (t->keep) {
		UNROLL for (size_t m = 0; m < M; m++)
			UNROLL for (size_t n = 0; n < N; n++)
				v_store(t->spill + (m * PANEL_N + n) * VL, acc[m][n]);
		return;
	}
	UNROLL for (size_t m = 0; m < M; m++) {
		float sum[4];

		_mm_storeu_ps(sum, v_sum4(acc[m][0], N > 1 ? acc[m][1] : v_zero(), N > 2 ? acc[m][2] : v_zero(),
			N > 3 ? acc[m][3] : v_zero()));
		for (size_t n = 0; n < N; n++)
			t->y[m * t->g->ldy + n] = t->g->round ? round_bf16(sum[n]) : sum[n];
	}
}

/* Sums of the tile as they stand: zero, or what an earlier range of columns left. */
INLINE void start(const size_t M, const size_t N, VF (*acc)[N_MOST], VF (*dot)[N_MOST], const struct tile *t)
{
	UNROLL for (size_t m = 0; m < M; m++)
		UNROLL for (size_t n = 0; n < N; n++) {
			acc[m][n] = t->load ? v_load(t->spill + (m * PANEL_N + n) * VL) : v_zero();
			dot[m][n] = v_zero();
		}
}

INLINE void tile_packed(const size_t M, const size_t N, const bool blocks, const struct tile *t)
{
	VF acc[M_MOST][N_MOST], dot[M_MOST][N_MOST];
	size_t b = 0;

	start(M, N, acc, dot, t);
	if (!blocks) {
		steps_packed(M, N, acc, t->x, t->ldx, t->w, LD, (t->len + STEP - 1) / STEP);
		finish(M, N, acc, t);
		return;
	}
	for (; (b + 1) * FP8_BLOCK <= t->len; b++) {
		block_packed(M, N, dot, t->x + b * FP8_BLOCK, t->ldx, t->w + b * FP8_BLOCK, LD);
		scale_block(M, N, acc, dot, t->s + b, t->lds);
	}
	if (b * FP8_BLOCK < t->len) {
		steps_packed(M, N, dot, t->x + b * FP8_BLOCK, t->ldx, t->w + b * FP8_BLOCK, LD,
			(t->len - b * FP8_BLOCK + STEP - 1) / STEP);
		scale_block(M, N, acc, dot, t->s + b, t->lds);
	}
	finish(M, N, acc, t);
}

INLINE void tile_direct(const size_t M, const size_t N, const bool blocks, const enum src src, const struct tile *t)
{
	const struct mat *w = t->g->w;
	const size_t ldp = w->ld * src_size(src), end = t->len * src_size(src);
	/* AHEAD bytes on, where the tiles that follow take up the same columns of the next rows */
	const size_t jump = AHEAD / end * N * ldp, more = AHEAD % end;
	const uint8_t *p = mat_at(w, t->row, t->k);
	VF acc[M_MOST][N_MOST], dot[M_MOST][N_MOST];
	size_t k = 0;

	start(M, N, acc, dot, t);
	for (; k + FP8_BLOCK <= t->len && src != SRC_NONE; k += FP8_BLOCK) {
		size_t at = k * src_size(src);

		steps_direct(M, N, src, blocks ? dot : acc, t->x + k, t->ldx, p + at, ldp,
			jump + (at + more < end ? more : more - end + N * ldp));
		if (blocks)
			scale_block(M, N, acc, dot, t->s + k / FP8_BLOCK, t->lds);
	}
	for (; k < t->len; k += FP8_BLOCK) {
		size_t n = t->len - k < FP8_BLOCK ? t->len - k : FP8_BLOCK;
		ELEM buf[N_MOST * FP8_BLOCK] __attribute__((aligned(64)));

		for (size_t i = 0; i < N; i++)
			pack_weight(buf + i * FP8_BLOCK, w, t->row + i, t->k + k, n, blocks);
		steps_packed(M, N, blocks ? dot : acc, t->x + k, t->ldx, buf, FP8_BLOCK, (n + STEP - 1) / STEP);
		if (blocks)
			scale_block(M, N, acc, dot, t->s + k / FP8_BLOCK, t->lds);
	}
	finish(M, N, acc, t);
}

typedef void tile_fn(const struct tile *t);

/* ---- the tiles, by number of rows ---- */

#define PACKED(B, M, N) static void packed_##B##_##M##_##N(const struct tile *t) { tile_packed(M, N, B, t); }
#define DIRECT(B, SRC, M, N) static void direct_##B##_##SRC##_##M##_##N(const struct tile *t) \
	{ tile_direct(M, N, B, SRC, t); }
TILE_LIST
#undef PACKED
#undef DIRECT
#define PACKED(B, M, N) [B][M - 1][N == 1] = packed_##B##_##M##_##N,
#define DIRECT(B, SRC, M, N)
static tile_fn *const packed[2][M_MOST][2] = { TILE_LIST };
#undef PACKED
#undef DIRECT
#define PACKED(B, M, N)
#define DIRECT(B, SRC, M, N) [B][SRC][M - 1][N == 1] = direct_##B##_##SRC##_##M##_##N,
static tile_fn *const direct[2][SRC_COUNT][M_MOST][2] = { TILE_LIST };

/* s_x * s_w of rows [m0, m0 + m) and weight row n, for the blocks of columns [k, k + len). */
static void scales(float *s, size_t lds, const struct gemm *g, size_t m0, size_t m, size_t n, size_t k, size_t len)
{
	for (size_t i = 0; i < m; i++)
		for (size_t b = 0; b * FP8_BLOCK < len; b++)
			s[i * lds + b] = act_scale(g->x, act_row(g, m0 + i), k + b * FP8_BLOCK) *
			                 mat_scale(g->w, n, k + b * FP8_BLOCK) * F8_FACTOR;
}

/* Last weight row + 1 of a run from n on that has one row of scale blocks. */
static size_t run_end(const struct mat *w, size_t n, size_t n1, bool blocks)
{
	size_t left = FP8_BLOCK - (w->row0 + n) % FP8_BLOCK;

	return blocks && n1 - n > left ? n + left : n1;
}

/* Elements from row to row when few rows are packed whole: a multiple of 128, so of STEP; not of the cache's ways. */
static size_t few_ld(size_t cols)
{
	return (cols + FP8_BLOCK - 1) / FP8_BLOCK * FP8_BLOCK + FP8_BLOCK;
}

/* Weight rows [n, end) against the few packed rows, over the columns of t. */
static void few_tiles(struct tile *t, size_t m0, size_t m, size_t n, size_t end, tile_fn *const *fn)
{
	static const uint8_t wide[] = { DIRECT_N };
	const size_t N = wide[m - 1], first = n;

	while (n < end) {
		bool one = end - n < N || N == 1;

		t->row = n;
		t->y = t->g->y + m0 * t->g->ldy + n;
		if (t->load || t->keep)
			t->spill = ((struct desk *)isa_desk)->spill + (n - first) * VL;
		fn[one](t);
		n += one ? 1 : N;
	}
}

static void few_rows(const struct gemm *g, size_t m0, size_t m, size_t n0, size_t n1, bool blocks, enum src src)
{
	struct desk *d = isa_desk;
	const size_t cols = g->w->cols, ld = few_ld(cols);
	/* columns whose elements stay in the first cache while weight rows pass by; one row comes fast enough anyhow */
	const size_t piece = m == 1 || cols <= X_PIECE / m ? cols : X_PIECE / m / FP8_BLOCK * FP8_BLOCK;
	struct tile t = { .ldx = ld, .g = g, .lds = ld / FP8_BLOCK };

	for (size_t i = 0; i < m; i++)
		pack_act(d->x + i * ld, g->x, act_row(g, m0 + i), 0, cols);
	for (size_t n = n0; n < n1;) {
		size_t end = run_end(g->w, n, n1, blocks);

		if (piece < cols && end - n > PANEL_N)
			end = n + PANEL_N;
		if (blocks)
			scales(d->s, t.lds, g, m0, m, n, 0, cols);
		for (size_t k = 0; k < cols; k += piece) {
			t.k = k;
			t.len = cols - k < piece ? cols - k : piece;
			t.x = d->x + k;
			t.s = d->s + k / FP8_BLOCK;
			t.load = k > 0;
			t.keep = cols - k > piece;
			few_tiles(&t, m0, m, n, end, direct[blocks][src][m - 1]);
		}
		n = end;
	}
}

/* All tiles of the packed panels: rows m0.., weight rows n0... */
static void all_tiles(const struct tile *panel, size_t m0, size_t m, size_t n0, size_t n, bool blocks)
{
	const size_t M = blocks ? BLOCK_M : TILE_M, N = blocks ? BLOCK_N : TILE_N;
	struct tile t = *panel;

	/* the rows of a tile stay in the first cache while the weights pass by */
	for (size_t i = 0; i < m; i += M) {
		tile_fn *const *fn = packed[blocks][(m - i < M ? m - i : M) - 1];

		t.x = panel->x + i * LD;
		t.s = panel->s + i * t.lds;
		for (size_t j = 0, one; j < n; j += one ? 1 : N) {
			one = n - j < N;
			t.w = panel->w + j * LD;
			t.spill = panel->spill + (i * PANEL_N + j) * VL;
			t.y = t.g->y + (m0 + i) * t.g->ldy + n0 + j;
			fn[one](&t);
		}
	}
}

static void many_rows(const struct gemm *g, size_t m0, size_t m, size_t n0, size_t n, bool blocks)
{
	struct desk *d = isa_desk;
	struct tile t = { .x = d->x, .ldx = LD, .w = d->w, .g = g, .s = d->s, .lds = KC / FP8_BLOCK,
		.spill = d->spill };

	for (size_t k = 0; k == 0 || k < g->w->cols; k += KC) {
		t.k = k;
		t.len = g->w->cols - k < KC ? g->w->cols - k : KC;
		t.load = k > 0;
		t.keep = g->w->cols - k > KC;
		for (size_t i = 0; i < m; i++)
			pack_act(d->x + i * LD, g->x, act_row(g, m0 + i), k, t.len);
		for (size_t j = 0; j < n; j++)
			pack_weight(d->w + j * LD, g->w, n0 + j, k, t.len, blocks);
		if (blocks)
			scales(d->s, t.lds, g, m0, m, n0, k, t.len);
		all_tiles(&t, m0, m, n0, n, blocks);
	}
}

static void product(const struct gemm *g, size_t m0, size_t m1, size_t n0, size_t n1, bool blocks, enum src src)
{
	for (size_t m = m0; m < m1; m += PANEL_M) {
		size_t rows = m1 - m < PANEL_M ? m1 - m : PANEL_M;

		if (rows <= DIRECT_M && g->w->cols && rows * few_ld(g->w->cols) <= X_ELEMS) {
			few_rows(g, m, rows, n0, n1, blocks, src);
			continue;
		}
		for (size_t n = n0; n < n1;) {
			size_t end = run_end(g->w, n, n1, blocks);

			if (end - n > PANEL_N)
				end = n + PANEL_N;
			many_rows(g, m, rows, n, end - n, blocks);
			n = end;
		}
	}
}
