/*
 * Matrix products in tiles, over what the including file defines:
 *
 *   ELEM, STEP        type of an element as it is multiplied, elements in one operand
 *   OPERAND           a vector of STEP elements; op_load(const ELEM *), op_store(ELEM *, OPERAND)
 *   op_dot(acc, x, w) acc (VF) plus the products of two operands, lane by lane
 *   F8_UNITS          operands that STEP * F8_UNITS codes become, F8_FACTOR: what their values lack
 *   enum src          weights that are taken from where they lie: op_src(src, OPERAND[], const uint8_t *, float)
 *                     makes operands of them; SRC_F8 codes, SRC_DQ codes times the float; SRC_NONE: those that are not
 *   src_plain(src)    whether such weights lie there as elements
 *   pack_weight       a piece of a row as elements, padded with zeros to whole units
 *   X_IN_PLACE        activations lie there as elements: act_elems(act, row); else pack_act makes them
 *   TILE_M, TILE_N    the tile of plain products, BLOCK_M, BLOCK_N: of those scaled by blocks
 *   DIRECT_M          most rows of a tile that takes weights from where they lie
 *   DIRECT_TO         most rows of which all tiles do: converting twice is then less than leaving elements behind
 *   STORE_M0, STORE_M1  least and most rows of one that leaves them behind as elements
 *   SET(name)         the name of the product made
 *
 * The order of a sum, the same in every path: lane j of the accumulator of (row, weight row) takes the elements that
 * fall to it step by step; with blocks of scales the lanes of a block's 128 columns are summed from zero, then added as
 * fma(lane, s_x * s_w, acc).  In the end the lanes are summed by v_sum4's tree.  Nothing else is ever added, so that
 * neither the tile's shape nor its place matters; columns past the end are zeros up to whole units in all paths.
 *
 * Weights are worked through in groups of GROUP rows, KC columns at a time.  The first tile of a group converts them in
 * registers on their way from memory and, where more tiles follow, leaves them in the desk, that is in the first cache.
 * Sums of more than KC columns rest in the desk meanwhile.
 */
#include <string.h>

#include "kernels/cpu/widen.h"

#define INLINE static inline __attribute__((always_inline))
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL /* not a matter of results, but of minutes of compiling */
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif
#define UNROLL_TILE _Pragma("GCC unroll 8") /* always: sums that stay in registers are none of a sanitizer's business */

enum {
	PANEL_M = 64, PANEL_N = 64,
	GROUP = 4,
	KC = 4096 / sizeof(ELEM),
	LD = KC + 64 / sizeof(ELEM), /* not a power of two: rows must not fall on the same lines of the cache */
	LONGEST = 32768,             /* columns of a single row that are taken at once */
	M_MOST = 8, N_MOST = 4,
	SHORT_ROW = 512, /* bytes, less than */
	AHEAD = 8192, /* bytes ahead to ask for, into the second cache: the first can wait for few lines at a time */
};

struct desk {
	ELEM w[GROUP * LD];
	float spill[PANEL_M * PANEL_N * VL];
	float s[PANEL_M * KC / FP8_BLOCK]; /* s_x * s_w by row and block */
#if !X_IN_PLACE
	ELEM x[PANEL_M * LD];
#endif
};
_Static_assert(sizeof(struct desk) <= ISA_DESK, "the desk is too small");
_Static_assert(LONGEST <= PANEL_M * KC, "a long row does not fit");

/* Columns [k, k + len) of some rows and weight rows, k a multiple of 128. */
struct tile {
	const ELEM *const *x; /* rows from column k on */
	const uint8_t *p;     /* weights where they lie, ldp bytes from row to row; further on what follows them */
	size_t ldp, jump, more, end;
	const char *ahead;    /* where more tiles share the weights: what comes next; each block asks for `lines` */
	size_t lines;
	const ELEM *w;        /* weights as elements, whole blocks */
	size_t ldw;
	/* [.., LD]: where weights are left; the rest of a row that is no whole block lies there, at its column
	 * modulo KC */
	ELEM *buf;
	const float *s;       /* [m, lds] by blocks from column k on; SRC_DQ: [lds] */
	size_t lds;
	size_t len;
	float *spill;         /* [m, PANEL_N, VL] */
	bool load, keep;      /* start from the spilled sums, leave them there */
	float *y;             /* [m, ldy] */
	size_t ldy;
	bool round;
};

/* Steps over n columns. */
INLINE size_t steps_of(size_t n, const bool blocks)
{
	const size_t units = blocks ? F8_UNITS : 1;

	return (n + STEP * units - 1) / (STEP * units) * units;
}

INLINE void step(const size_t M, const size_t N, VF (*acc)[N_MOST], const ELEM *const *x, size_t k, const OPERAND *w,
	const size_t units)
{
	UNROLL_TILE for (size_t m = 0; m < M; m++) {
		OPERAND xv = op_load(x[m] + k);

		UNROLL_TILE for (size_t n = 0; n < N; n++)
			acc[m][n] = op_dot(acc[m][n], xv, w[n * units]);
	}
}

/* Whichever is fewer stays in registers, where there are only sixteen. */
INLINE void step_elems(const size_t M, const size_t N, VF (*acc)[N_MOST], const ELEM *const *x, size_t k,
	const ELEM *w, size_t ldw)
{
	OPERAND v[M_MOST];

	if (M < N && VL == 8) {
		UNROLL_TILE for (size_t m = 0; m < M; m++)
			v[m] = op_load(x[m] + k);
		UNROLL_TILE for (size_t n = 0; n < N; n++) {
			OPERAND wv = op_load(w + n * ldw);

			UNROLL_TILE for (size_t m = 0; m < M; m++)
				acc[m][n] = op_dot(acc[m][n], v[m], wv);
		}
		return;
	}
	UNROLL_TILE for (size_t n = 0; n < N; n++)
		v[n] = op_load(w + n * ldw);
	step(M, N, acc, x, k, v, 1);
}

/* One whole block of 128 columns, the weights taken from where they lie and left in buf if asked. */
INLINE void block_direct(const size_t M, const size_t N, const enum src src, const bool store, VF (*acc)[N_MOST],
	const ELEM *const *x, const struct tile *t, size_t k)
{
	const size_t units = src == SRC_F8 || src == SRC_DQ ? F8_UNITS : 1, size = src_size(src), at = k * size;
	const float f = src == SRC_DQ ? t->s[k / FP8_BLOCK] : 0;
	const uint8_t *p = t->p + at;
	const uint8_t *next = p + N * t->jump + (at + t->more < t->end ? t->more : t->more - t->end + N * t->ldp);

	if (!store && (N > 1 || !src_plain(src))) /* else `lines` or a rest */
		UNROLL for (size_t i = 0; i < N * FP8_BLOCK * size; i += 64)
			_mm_prefetch((const char *)next + i / (FP8_BLOCK * size) * t->ldp + i % (FP8_BLOCK * size),
				_MM_HINT_T1);
	UNROLL for (size_t i = 0; i < FP8_BLOCK / STEP; i += units) {
		OPERAND wv[N_MOST * F8_UNITS];

		UNROLL_TILE for (size_t n = 0; n < N; n++) {
			op_src(src, wv + n * units, p + n * t->ldp + i * STEP * size, f);
			UNROLL for (size_t u = 0; u < units && store; u++)
				op_store(t->buf + n * LD + k + (i + u) * STEP, wv[n * units + u]);
		}
		UNROLL for (size_t u = 0; u < units; u++)
			step(M, N, acc, x, k + (i + u) * STEP, wv + u, units);
	}
}

INLINE void block_elems(const size_t M, const size_t N, VF (*acc)[N_MOST], const ELEM *const *x, const struct tile *t,
	size_t k)
{
	UNROLL for (size_t i = 0; i < FP8_BLOCK; i += STEP)
		step_elems(M, N, acc, x, k + i, t->w + k + i, t->ldw);
}

INLINE void scale_block(const size_t M, const size_t N, VF (*acc)[N_MOST], VF (*dot)[N_MOST], const float *s,
	size_t lds)
{
	UNROLL_TILE for (size_t m = 0; m < M; m++)
		UNROLL_TILE for (size_t n = 0; n < N; n++) {
			acc[m][n] = v_fma(dot[m][n], v_set1(s[m * lds]), acc[m][n]);
			dot[m][n] = v_zero();
		}
}

INLINE __m128 round4(__m128 v)
{
	__m128i u = _mm_castps_si128(v), odd = _mm_and_si128(_mm_srli_epi32(u, 16), _mm_set1_epi32(1));
	__m128i r = _mm_add_epi32(u, _mm_add_epi32(odd, _mm_set1_epi32(0x7fff)));
	__m128i nan = _mm_castps_si128(_mm_cmpunord_ps(v, v));

	r = _mm_blendv_epi8(r, _mm_or_si128(u, _mm_set1_epi32(0x400000)), nan);
	return _mm_castsi128_ps(_mm_and_si128(r, _mm_set1_epi32((int)0xffff0000)));
}

INLINE void finish(const size_t M, const size_t N, VF (*acc)[N_MOST], const struct tile *t)
{
	if (t->keep) {
		UNROLL_TILE for (size_t m = 0; m < M; m++)
			UNROLL_TILE for (size_t n = 0; n < N; n++)
				v_store(t->spill + (m * PANEL_N + n) * VL, acc[m][n]);
		return;
	}
	UNROLL for (size_t i = 0; i < M * N; i += 4) {
		VF z = v_zero();
		__m128 sum = v_sum4(acc[i / N][i % N], i + 1 < M * N ? acc[(i + 1) / N][(i + 1) % N] : z,
			i + 2 < M * N ? acc[(i + 2) / N][(i + 2) % N] : z,
			i + 3 < M * N ? acc[(i + 3) / N][(i + 3) % N] : z);
		float *y = t->y + i / N * t->ldy + i % N;

		if (t->round)
			sum = round4(sum);
		if (N == 4) {
			_mm_storeu_ps(y, sum);
		} else if (N == 2) {
			_mm_storel_pi((__m64 *)(void *)y, sum);
			if (i + 2 < M * N)
				_mm_storeh_pi((__m64 *)(void *)(y + t->ldy), sum);
		} else {
			for (size_t j = 0; j < 4 && i + j < M; j++, sum = _mm_shuffle_ps(sum, sum, 0x39))
				_mm_store_ss(y + j * t->ldy, sum);
		}
	}
}

/* Sums of the tile as they stand: zero, or what an earlier range of columns left. */
INLINE void start(const size_t M, const size_t N, VF (*acc)[N_MOST], VF (*dot)[N_MOST], const struct tile *t)
{
	UNROLL_TILE for (size_t m = 0; m < M; m++)
		UNROLL_TILE for (size_t n = 0; n < N; n++) {
			acc[m][n] = t->load ? v_load(t->spill + (m * PANEL_N + n) * VL) : v_zero();
			dot[m][n] = v_zero();
		}
}

/* The sums of a tile in acc; src SRC_NONE: of elements. */
INLINE void sum_up(const size_t M, const size_t N, const bool blocks, const enum src src, const bool store,
	const struct tile *t, VF (*acc)[N_MOST], VF (*dot)[N_MOST])
{
	const ELEM *x[M_MOST];
	const char *ahead = t->ahead;
	size_t k = 0;

	UNROLL_TILE for (size_t m = 0; m < M; m++)
		x[m] = t->x[m];
	start(M, N, acc, dot, t);
	for (; k + FP8_BLOCK <= t->len; k += FP8_BLOCK) {
		for (size_t i = 0; i < t->lines && (store || src == SRC_NONE); i++, ahead += 64)
			_mm_prefetch(ahead, _MM_HINT_T1);
		if (src == SRC_NONE)
			block_elems(M, N, blocks ? dot : acc, x, t, k);
		else
			block_direct(M, N, src, store, blocks ? dot : acc, x, t, k);
		if (blocks)
			scale_block(M, N, acc, dot, t->s + k / FP8_BLOCK, t->lds);
	}
	if (k < t->len) {
		for (size_t i = 0; i < steps_of(t->len - k, blocks); i++)
			step_elems(M, N, blocks ? dot : acc, x, k + i * STEP, t->buf + k % KC + i * STEP, LD);
		if (blocks)
			scale_block(M, N, acc, dot, t->s + k / FP8_BLOCK, t->lds);
	}
}

INLINE void tile(const size_t M, const size_t N, const bool blocks, const enum src src, const bool store,
	const struct tile *t)
{
	VF acc[M_MOST][N_MOST], dot[M_MOST][N_MOST];

	sum_up(M, N, blocks, src, store, t, acc, dot);
	finish(M, N, acc, t);
}

/*
 * Four weight rows for one row, one after another.  Memory is read in the order in which it lies; with so little to do
 * for each line the processor has enough of them under way by itself, more than with asking ahead.
 */
INLINE void lines(const bool blocks, const enum src src, const struct tile *t)
{
	VF sums[M_MOST][N_MOST], acc[M_MOST][N_MOST], dot[M_MOST][N_MOST];
	struct tile line = *t;

	for (size_t n = 0; n < N_MOST; n++, line.p += t->ldp, line.buf += LD, line.spill += VL) {
		sum_up(1, 1, blocks, src, false, &line, acc, dot);
		sums[0][n] = acc[0][0];
	}
	finish(1, N_MOST, sums, t);
}

typedef void tile_fn(const struct tile *t);

/* ---- the tiles, by number of rows: those of n weight rows, and of one ---- */

/* What a direct tile is for: to multiply only, to leave elements behind as well, or short rows, whose time goes into
 * beginning and ending tiles. */
enum aim { MULTIPLY, STORE, SHORT_ROWS, AIMS };

struct tiles { tile_fn *fn; size_t n; };

#define ELEMS(B, M, N) static void elems_##B##_##M##_##N(const struct tile *t) { tile(M, N, B, SRC_NONE, false, t); }
#define DIRECT(B, SRC, AIM, M, N) static void direct_##B##_##SRC##_##AIM##_##M##_##N(const struct tile *t) \
	{ tile(M, N, B, SRC, AIM == STORE, t); }
#define LINES(B, SRC) static void lines_##B##_##SRC(const struct tile *t) { lines(B, SRC, t); }
TILE_LIST
#undef ELEMS
#undef DIRECT
#undef LINES
#define ELEMS(B, M, N) [B][M - 1][N == 1] = { elems_##B##_##M##_##N, N },
#define DIRECT(B, SRC, AIM, M, N)
#define LINES(B, SRC)
static const struct tiles elems[2][M_MOST][2] = { TILE_LIST };
#undef ELEMS
#undef DIRECT
#undef LINES
#define ELEMS(B, M, N)
#define DIRECT(B, SRC, AIM, M, N) [SRC][AIM][M - 1][N == 1] = { direct_##B##_##SRC##_##AIM##_##M##_##N, N },
#define LINES(B, SRC) [SRC][MULTIPLY][0][0] = { lines_##B##_##SRC, N_MOST },
static const struct tiles direct[SRC_COUNT][AIMS][M_MOST][2] = { TILE_LIST };

/* ---- panels ---- */

/* A product's rows [m0, m0 + m) and weight rows [n0, n0 + n), at most PANEL_M and PANEL_N, with one row of scales. */
struct panel {
	const struct gemm *g;
	bool blocks;
	enum src src;
	bool direct;      /* every tile takes the weights from where they lie, later ones out of a cache */
	size_t m0, m, n0, n;
	size_t k, len;    /* the columns in work */
	const uint8_t *w; /* weight row n0 from column k on */
	size_t lines, at; /* look_ahead */
	const ELEM *x[PANEL_M];
	struct tile t;
};

/* Rows of the next tile when `left` are left: as even as they can be. */
static size_t height(size_t left, size_t most)
{
	size_t tiles = (left + most - 1) / most;

	return (left + tiles - 1) / tiles;
}

/* Has the next tile ask for its part of what follows the group at weight row n. */
static void look_ahead(struct panel *p, size_t n)
{
	struct tile *t = &p->t;
	size_t byte = p->at * 64;

	t->lines = byte < GROUP * t->end ? p->lines : 0;
	if (t->lines)
		t->ahead = (const char *)p->w + (n + GROUP + byte / t->end) * t->ldp + byte % t->end;
	p->at += p->lines * (t->len / FP8_BLOCK);
}

/* Tiles of rows from m on and of weight rows [n, n + count) of the panel. */
static void tiles(struct panel *p, size_t m, size_t n, size_t count, const struct tiles *fn)
{
	struct tile *t = &p->t;
	struct desk *d = isa_desk;
	const bool plain = src_plain(p->src);
	float *y = p->g->y + (p->m0 + m) * p->g->ldy + p->n0 + n;

	t->x = p->x + m;
	t->s = d->s + m * t->lds;
	for (size_t j = 0, wide; j < count; j += wide) {
		wide = count - j < fn[0].n || !fn[0].fn ? 1 : fn[0].n;
		t->p = p->w + (n + j) * t->ldp;
		t->buf = d->w + j % GROUP * LD;
		t->w = plain ? (const ELEM *)(const void *)t->p : t->buf;
		t->spill = d->spill + (m * PANEL_N + (n + j) % PANEL_N) * VL;
		t->y = y + j;
		if (p->lines)
			look_ahead(p, n);
		fn[wide == 1].fn(t);
	}
}

/* Makes elements of those weights that no tile takes from where they lie. */
static void prepare(const struct panel *p, size_t n, size_t count)
{
	struct desk *d = isa_desk;
	size_t k = p->src == SRC_NONE ? 0 : p->len / FP8_BLOCK * FP8_BLOCK;

	for (size_t j = 0; j < count && k < p->len; j++)
		pack_weight(d->w + j * LD + k % KC, p->g->w, p->n0 + n + j, p->k + k, p->len - k, p->blocks);
}

/* Rows of the first of many tiles, so that full ones of M rows are left, if that can be. */
static size_t store_rows(size_t m, size_t M)
{
	size_t rows = STORE_M0 + (m - STORE_M0) % M;

	return rows < STORE_M1 ? rows : STORE_M1;
}

static const struct tiles *direct_tiles(const struct panel *p, size_t rows)
{
	const struct tiles *brief = direct[p->src][SHORT_ROWS][rows - 1];

	return brief->fn && p->t.end < SHORT_ROW ? brief : direct[p->src][MULTIPLY][rows - 1];
}

/* All rows against `count` weight rows, at most GROUP, or more where the desk is not needed for them. */
static void group(struct panel *p, size_t n, size_t count)
{
	const size_t M = p->blocks ? BLOCK_M : TILE_M;
	size_t m = 0, high;

	prepare(p, n, count);
	p->at = 0;
	for (; p->direct && m < p->m; m += high) {
		high = height(p->m - m, DIRECT_M);
		tiles(p, m, n, count, direct_tiles(p, high));
	}
	if (!p->direct && p->src != SRC_NONE && !src_plain(p->src)) {
		m = store_rows(p->m, M);
		tiles(p, 0, n, count, direct[p->src][STORE][m - 1]);
	}
	for (; m < p->m; m += high) {
		high = height(p->m - m, M);
		tiles(p, m, n, count, elems[p->blocks][high - 1]);
	}
}

/* s_x * s_w of the panel's rows, for the blocks of columns [k, k + len); s_w alone where the sums are not scaled. */
static void scales(const struct panel *p, float *s, size_t lds)
{
	const struct mat *w = p->g->w;
	const float *sw = w->scale + (w->row0 + p->n0) / FP8_BLOCK * w->scale_ld + p->k / FP8_BLOCK;

	for (size_t b = 0; b < lds && !p->blocks; b++)
		s[b] = sw[b] * F8_FACTOR;
	if (!p->blocks)
		return;
	for (size_t i = 0; i < p->m; i++, s += lds) {
		const float *sx = act_scales(p->g->x, act_row(p->g, p->m0 + i)) + p->k / FP8_BLOCK;

		for (size_t b = 0; b < lds; b++)
			s[b] = sx[b] * sw[b] * F8_FACTOR;
	}
}

/* The panel's rows as elements, from column k on. */
static void rows_of(struct panel *p)
{
	for (size_t i = 0; i < p->m; i++) {
#if X_IN_PLACE
		p->x[i] = act_elems(p->g->x, act_row(p->g, p->m0 + i)) + p->k;
#else
		ELEM *x = ((struct desk *)isa_desk)->x + i * LD;

		pack_act(x, p->g->x, act_row(p->g, p->m0 + i), p->k, p->len);
		p->x[i] = x;
#endif
	}
}

/* Lines that each block of each tile has to ask for, so that all of the next group are by the end of one. */
static size_t lines_of(const struct panel *p)
{
	const size_t M = p->blocks ? BLOCK_M : TILE_M, N = p->blocks ? BLOCK_N : TILE_N;
	size_t blocks = (p->m + M - 1) / M * (GROUP / N) * (p->len / FP8_BLOCK);

	if (p->direct || !blocks)
		return 0; /* such tiles ask themselves */
	return (GROUP * p->t.end / 64 + blocks - 1) / blocks;
}

static void panel(struct panel *p, size_t piece)
{
	const size_t cols = p->g->w->cols;
	/* no desk is needed where one tile takes all from where it lies */
	const size_t most = !p->direct || p->m > DIRECT_M || cols % FP8_BLOCK ? GROUP : p->n;
	struct desk *d = isa_desk;
	struct tile *t = &p->t;

	for (p->k = 0; p->k == 0 || p->k < cols; p->k += piece) {
		p->len = cols - p->k < piece ? cols - p->k : piece;
		p->w = mat_at(p->g->w, p->n0, p->k);
		t->len = p->len;
		t->load = p->k > 0;
		t->keep = cols - p->k > piece;
		t->lds = (p->len + FP8_BLOCK - 1) / FP8_BLOCK;
		/* AHEAD bytes on, where the tiles that follow take up the same columns of the next rows */
		t->end = p->len * src_size(p->src);
		t->more = t->end ? AHEAD % t->end : 0;
		t->jump = t->end ? AHEAD / t->end * t->ldp : 0;
		p->lines = lines_of(p);
		rows_of(p);
		if (p->blocks || p->src == SRC_DQ)
			scales(p, d->s, t->lds);
		for (size_t n = 0, count; n < p->n; n += count) {
			count = p->n - n < most ? 1 : most;
			group(p, n, count);
		}
	}
}

static void product(const struct gemm *g, size_t m0, size_t m1, size_t n0, size_t n1, bool blocks, enum src src)
{
	struct panel p = { .g = g, .blocks = blocks, .src = src, .t = { .ldp = g->w->ld * src_size(src),
		.ldw = src_plain(src) ? g->w->ld : LD, .ldy = g->ldy, .round = g->round } };

	for (p.m0 = m0; p.m0 < m1; p.m0 += PANEL_M) {
		p.m = m1 - p.m0 < PANEL_M ? m1 - p.m0 : PANEL_M;
		for (p.n0 = n0; p.n0 < n1; p.n0 += p.n) {
			/* one row has its columns in the first cache anyhow */
			size_t piece = p.m == 1 && src != SRC_NONE && g->w->cols <= LONGEST ? LONGEST : KC;
			size_t left = FP8_BLOCK - (g->w->row0 + p.n0) % FP8_BLOCK;

			p.direct = src != SRC_NONE && p.m <= DIRECT_TO;
			p.n = n1 - p.n0;
			if (piece < g->w->cols && p.n > PANEL_N)
				p.n = PANEL_N;
			if ((blocks || src == SRC_DQ) && p.n > left)
				p.n = left;
			panel(&p, piece);
		}
	}
}
