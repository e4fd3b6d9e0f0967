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

enum src { SRC_F8, SRC_BF16, SRC_NONE, SRC_COUNT };

static inline size_t src_size(enum src src)
{
	return src == SRC_F8 ? 1 : 2;
}

static inline __attribute__((always_inline)) OPERAND op_load(const uint16_t *p)
{
	return _mm512_loadu_si512(p);
}

static inline __attribute__((always_inline)) VF op_dot(VF acc, OPERAND x, OPERAND w)
{
	return _mm512_dpbf16_ps(acc, (__m512bh)x, (__m512bh)w);
}

/* 64 codes to bfloat16 by two tables of 128 bytes, for the halves of the magnitude. */
static inline __attribute__((always_inline)) void op_f8(OPERAND *w, __m512i codes)
{
	/* in this order of quadwords the unpacking below, which works by 16 bytes, leaves the elements in theirs */
	const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
	__m512i c = _mm512_permutexvar_epi64(order, codes);
	__m512i lo = _mm512_permutex2var_epi8(_mm512_load_si512(isa_e4m3_bf16[0]), c,
		_mm512_load_si512(isa_e4m3_bf16[0] + 64));
	__m512i hi = _mm512_permutex2var_epi8(_mm512_load_si512(isa_e4m3_bf16[1]), c,
		_mm512_load_si512(isa_e4m3_bf16[1] + 64));

	/* hi | (c & 0x80) */
	hi = _mm512_ternarylogic_epi32(hi, c, _mm512_set1_epi8((char)0x80), 0xf8);
	w[0] = _mm512_unpacklo_epi8(lo, hi);
	w[1] = _mm512_unpackhi_epi8(lo, hi);
}

static inline __attribute__((always_inline)) void op_src(enum src src, OPERAND *w, const uint8_t *p)
{
	if (src == SRC_F8)
		op_f8(w, _mm512_loadu_si512(p));
	else
		w[0] = _mm512_loadu_si512(p);
}

/* Either of codes or of bfloat16: as bfloat16, zeros up to a multiple of STEP. */
static void pack(uint16_t *y, const void *x, bool f8, size_t n)
{
	const uint8_t *p = x;
	size_t up = (n + STEP - 1) / STEP * STEP;

	if (!f8) {
		memcpy(y, x, n * sizeof(*y));
		memset(y + n, 0, (up - n) * sizeof(*y));
		return;
	}
	for (; n >= 64; n -= 64, p += 64, y += 64) {
		__m512i w[2];

		op_f8(w, _mm512_loadu_si512(p));
		_mm512_storeu_si512(y, w[0]);
		_mm512_storeu_si512(y + 32, w[1]);
	}
	if (n) {
		__m512i w[2];

		op_f8(w, _mm512_maskz_loadu_epi8(((__mmask64)1 << n) - 1, p));
		_mm512_storeu_si512(y, w[0]);
		if (n > 32)
			_mm512_storeu_si512(y + 32, w[1]);
	}
}

static void pack_act(uint16_t *y, const struct act *x, size_t r, size_t k, size_t n)
{
	bool f8 = x->kind == ACT_F8;

	pack(y, (const char *)x->data + (r * x->ld + k) * (f8 ? 1 : 2), f8, n);
}

static void pack_weight(uint16_t *y, const struct mat *w, size_t r, size_t k, size_t n, bool raw)
{
	pack(y, mat_at(w, r, k), raw, n);
}

enum { TILE_M = 6, TILE_N = 4, BLOCK_M = 3, BLOCK_N = 4, DIRECT_M = 4 };
#define DIRECT_N 4, 4, 2, 2
#define PACKED_ROW(M) PACKED(0, M, 4) PACKED(0, M, 1)
#define BLOCK_ROW(M) PACKED(1, M, 4) PACKED(1, M, 1)
#define DIRECT_ROWS(B, SRC) \
	DIRECT(B, SRC, 1, 4) DIRECT(B, SRC, 2, 4) DIRECT(B, SRC, 3, 2) DIRECT(B, SRC, 4, 2) \
	DIRECT(B, SRC, 1, 1) DIRECT(B, SRC, 2, 1) DIRECT(B, SRC, 3, 1) DIRECT(B, SRC, 4, 1)
#define TILE_LIST \
	PACKED_ROW(1) PACKED_ROW(2) PACKED_ROW(3) PACKED_ROW(4) PACKED_ROW(5) PACKED_ROW(6) \
	BLOCK_ROW(1) BLOCK_ROW(2) BLOCK_ROW(3) DIRECT_ROWS(0, SRC_BF16) DIRECT_ROWS(1, SRC_F8)
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
