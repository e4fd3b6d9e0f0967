/*
 * Products of bfloat16 pairs with float32 sums (VDPBF16PS): BF16 by BF16, and FP8 by FP8, whose codes are exact in
 * bfloat16. All other pairs are AVX-512's.  The instruction takes subnormals for zero; no e4m3 code becomes one.
 */
#include "kernels/cpu/vec_avx512.h"
#include "kernels/cpu/widen.h"

#define SET(name) name##_avx512bf16
#define ELEM uint16_t
#define OPERAND __m512i
enum { STEP = 32, F8_UNITS = 2 };
#define F8_FACTOR 1.0f

enum src { SRC_F8, SRC_BF16, SRC_NONE, SRC_COUNT, SRC_DQ };

static inline size_t src_size(enum src src)
{
	return src == SRC_F8 ? 1 : 2;
}

static inline bool src_plain(enum src src)
{
	return src == SRC_BF16;
}

static inline __attribute__((always_inline)) OPERAND op_load(const uint16_t *p)
{
	return _mm512_loadu_si512(p);
}

static inline __attribute__((always_inline)) void op_store(uint16_t *p, OPERAND w)
{
	_mm512_storeu_si512(p, w);
}

static inline __attribute__((always_inline)) VF op_dot(VF acc, OPERAND x, OPERAND w)
{
	return _mm512_dpbf16_ps(acc, (__m512bh)x, (__m512bh)w);
}

/*
 * 64 codes to bfloat16 by two tables of 128 bytes, for the halves of the magnitude.  Unpacking works by 16 bytes: w[0]
 * has the first eight codes of each 16, w[1] the others.  Activations are converted by the same function, so that
 * elements of the same column meet.
 */
static inline __attribute__((always_inline)) void op_f8(OPERAND *w, __m512i c)
{
	__m512i lo, hi;

	__asm__("" : "+v"(c)); /* or the compiler loads it anew for each use, and twice the lines if unaligned */
	lo = _mm512_permutex2var_epi8(_mm512_load_si512(isa_e4m3_bf16[0]), c,
		_mm512_load_si512(isa_e4m3_bf16[0] + 64));
	hi = _mm512_permutex2var_epi8(_mm512_load_si512(isa_e4m3_bf16[1]), c,
		_mm512_load_si512(isa_e4m3_bf16[1] + 64));

	/* hi | (c & 0x80) */
	hi = _mm512_ternarylogic_epi32(hi, c, _mm512_set1_epi8((char)0x80), 0xf8);
	w[0] = _mm512_unpacklo_epi8(lo, hi);
	w[1] = _mm512_unpackhi_epi8(lo, hi);
}

static inline __attribute__((always_inline)) void op_src(enum src src, OPERAND *w, const uint8_t *p, float f)
{
	(void)f;
	if (src == SRC_F8)
		op_f8(w, _mm512_loadu_si512(p));
	else
		w[0] = _mm512_loadu_si512(p);
}

/* Elements of n codes, zeros up to a multiple of 64. */
void widen_avx512bf16(void *y, const uint8_t *codes, size_t n)
{
	uint16_t *out = y;

	for (size_t i = 0; i < n; i += 64, out += 64) {
		__mmask64 mask = n - i < 64 ? ((__mmask64)1 << (n - i)) - 1 : ~(__mmask64)0;
		__m512i w[2];

		op_f8(w, _mm512_maskz_loadu_epi8(mask, codes + i));
		_mm512_storeu_si512(out, w[0]);
		_mm512_storeu_si512(out + 32, w[1]);
	}
}

static void pack_weight(uint16_t *y, const struct mat *w, size_t r, size_t k, size_t n, bool raw)
{
	const void *p = mat_at(w, r, k);

	if (raw) {
		widen_avx512bf16(y, p, n);
		return;
	}
	memcpy(y, p, n * sizeof(*y));
	memset(y + n, 0, ((n + STEP - 1) / STEP * STEP - n) * sizeof(*y));
}

#define X_IN_PLACE 1
static const uint16_t *act_elems(const struct act *x, size_t r)
{
	return (const uint16_t *)(x->kind == ACT_F8 ? x->wide : x->data) + r * x->ld;
}

enum { TILE_M = 6, TILE_N = 4, BLOCK_M = 3, BLOCK_N = 4, DIRECT_M = 6, STORE_M0 = 3,
	DIRECT_TO = 12, STORE_M1 = 5 };
#define DIRECT_ROW(B, SRC, AIM, M, N) DIRECT(B, SRC, AIM, M, N) DIRECT(B, SRC, AIM, M, 1)
#define ELEMS_ROW(B, M, N) ELEMS(B, M, N) ELEMS(B, M, 1)
#define TILE_LIST \
	ELEMS_ROW(0, 1, 4) ELEMS_ROW(0, 2, 4) ELEMS_ROW(0, 3, 4) ELEMS_ROW(0, 4, 4) ELEMS_ROW(0, 5, 4) \
	ELEMS_ROW(0, 6, 4) \
	ELEMS_ROW(1, 1, 4) ELEMS_ROW(1, 2, 4) ELEMS_ROW(1, 3, 4) \
	LINES(0, SRC_BF16) DIRECT(0, SRC_BF16, MULTIPLY, 1, 1) \
	DIRECT_ROW(0, SRC_BF16, MULTIPLY, 2, 2) DIRECT_ROW(0, SRC_BF16, MULTIPLY, 3, 2) \
	DIRECT_ROW(0, SRC_BF16, MULTIPLY, 4, 2) DIRECT_ROW(0, SRC_BF16, MULTIPLY, 5, 2) \
	DIRECT_ROW(0, SRC_BF16, MULTIPLY, 6, 2) \
	DIRECT_ROW(1, SRC_F8, SHORT_ROWS, 1, 4) DIRECT_ROW(1, SRC_F8, SHORT_ROWS, 2, 4) \
	DIRECT_ROW(1, SRC_F8, MULTIPLY, 1, 2) DIRECT_ROW(1, SRC_F8, MULTIPLY, 2, 2) \
	DIRECT_ROW(1, SRC_F8, MULTIPLY, 3, 2) DIRECT_ROW(1, SRC_F8, MULTIPLY, 4, 2) \
	DIRECT_ROW(1, SRC_F8, MULTIPLY, 5, 2) DIRECT_ROW(1, SRC_F8, MULTIPLY, 6, 2) \
	DIRECT_ROW(1, SRC_F8, STORE, 3, 2) DIRECT_ROW(1, SRC_F8, STORE, 4, 2) DIRECT_ROW(1, SRC_F8, STORE, 5, 2)
#include "kernels/cpu/gemm_tile.h"

void gemm_avx512bf16(const struct gemm *g, size_t m0, size_t m1, size_t n0, size_t n1)
{
	if (g->x->kind == ACT_F8)
		product(g, m0, m1, n0, n1, true, SRC_F8);
	else if (g->x->kind == ACT_BF16 && g->w->type == DT_BF16)
		product(g, m0, m1, n0, n1, false, SRC_BF16);
	else
		gemm_avx512(g, m0, m1, n0, n1);
}
