/* The float32 vector of AVX-512 and what the templates ask of it. */
#ifndef DS_KERNELS_CPU_VEC_AVX512_H
#define DS_KERNELS_CPU_VEC_AVX512_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define VF __m512
enum { VL = 16 };

static inline VF v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, VF v) { _mm512_storeu_ps(p, v); }
static inline VF v_zero(void) { return _mm512_setzero_ps(); }
static inline VF v_set1(float f) { return _mm512_set1_ps(f); }
static inline VF v_add(VF a, VF b) { return _mm512_add_ps(a, b); }
static inline VF v_sub(VF a, VF b) { return _mm512_sub_ps(a, b); }
static inline VF v_mul(VF a, VF b) { return _mm512_mul_ps(a, b); }
static inline VF v_div(VF a, VF b) { return _mm512_div_ps(a, b); }
static inline VF v_fma(VF a, VF b, VF c) { return _mm512_fmadd_ps(a, b, c); }
/* b where either is a NaN */
static inline VF v_max(VF a, VF b) { return _mm512_max_ps(a, b); }
static inline VF v_min(VF a, VF b) { return _mm512_min_ps(a, b); }
static inline VF v_abs(VF a) { return _mm512_abs_ps(a); }
static inline VF v_nearest(VF a)
{
	return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* a * 2^n for whole n, also into the subnormals and beyond the largest */
static inline VF v_ldexp(VF a, VF n) { return _mm512_scalef_ps(a, n); }

/* Largest lane; of NaN lanes any. */
static inline float v_hmax(VF v) { return _mm512_reduce_max_ps(v); }

static inline int v_any_equal(VF a, VF b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ) != 0; }

/* Half a vector as double. */
#define VD __m512d
static inline VD d_zero(void) { return _mm512_setzero_pd(); }
static inline VD d_low(VF v) { return _mm512_cvtps_pd(_mm512_castps512_ps256(v)); }
static inline VD d_high(VF v) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)); }
static inline VD d_add(VD a, VD b) { return _mm512_add_pd(a, b); }
static inline VD d_fma(VD a, VD b, VD c) { return _mm512_fmadd_pd(a, b, c); }
static inline void d_store(double *p, VD v) { _mm512_storeu_pd(p, v); } /* [VL / 2] */

/* bits of the bfloat16 nearest to each lane, ties to even, in the lanes' low halves */
static inline __m512i v_bf16_bits(VF v)
{
	__m512i u = _mm512_castps_si512(v), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
	__m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
	__mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);

	return _mm512_srli_epi32(_mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000)), 16);
}
static inline VF v_round_bf16(VF v)
{
	return _mm512_castsi512_ps(_mm512_slli_epi32(v_bf16_bits(v), 16));
}
static inline void v_store_bf16(uint16_t *p, VF v)
{
	_mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(v_bf16_bits(v)));
}
static inline VF v_load_bf16(const uint16_t *p)
{
	return _mm512_castsi512_ps(_mm512_slli_epi32(
		_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p)), 16));
}
static inline VF v_load_f16(const uint16_t *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
/*
 * Values of e4m3 codes divided by 2^8: with the bits moved up by 7 places a code is the float16 of that value, its
 * subnormals included; only the NaN needs help.
 */
static inline VF v_load_f8(const uint8_t *p)
{
	__m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
	__m256i h = _mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16((short)0xbf80));
	__mmask16 nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(w, _mm256_set1_epi16(0x7f)), _mm256_set1_epi16(0x7f));

	return _mm512_cvtph_ps(_mm256_mask_mov_epi16(h, nan, _mm256_set1_epi16(0x7e00)));
}
/* The same of 32 codes. */
static inline void v_load_f8x2(VF *y, const uint8_t *p)
{
	__m512i w = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)p));
	__m512i h = _mm512_and_si512(_mm512_slli_epi16(w, 7), _mm512_set1_epi16((short)0xbf80));
	__mmask32 nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(w, _mm512_set1_epi16(0x7f)), _mm512_set1_epi16(0x7f));

	h = _mm512_mask_mov_epi16(h, nan, _mm512_set1_epi16(0x7e00));
	y[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(h));
	y[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1));
}
/* e4m3 codes of the lanes: nearest, ties to even, saturating; 0x7f for a NaN. */
static inline void v_store_f8(uint8_t *p, VF v)
{
	VF a = v_abs(v);
	__m512i u = _mm512_castps_si512(a), odd = _mm512_and_si512(_mm512_srli_epi32(u, 20), _mm512_set1_epi32(1));
	__m512i normal = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7ffff))), 20);
	/* adding 2^14 leaves steps of 2^-9, those of e4m3's subnormals */
	__m512i tiny = _mm512_sub_epi32(_mm512_castps_si512(v_add(a, v_set1(16384.0f))), _mm512_set1_epi32(0x46800000));
	__mmask16 small = _mm512_cmp_ps_mask(a, v_set1(0x1p-6f), _CMP_LT_OQ);
	__mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
	__m512i c = _mm512_min_epi32(_mm512_sub_epi32(normal, _mm512_set1_epi32(120 << 3)), _mm512_set1_epi32(0x7e));

	c = _mm512_mask_mov_epi32(c, small, tiny);
	c = _mm512_or_si512(c, _mm512_and_si512(_mm512_srli_epi32(_mm512_castps_si512(v), 24),
		_mm512_set1_epi32(0x80)));
	c = _mm512_mask_mov_epi32(c, nan, _mm512_set1_epi32(0x7f));
	_mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(c));
}

/* The lanes of four vectors summed, each by the same tree whatever the others hold. */
static inline __m128 v_sum4(VF a, VF b, VF c, VF d)
{
	__m256 e = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
	__m256 f = _mm256_add_ps(_mm512_castps512_ps256(b), _mm512_extractf32x8_ps(b, 1));
	__m256 g = _mm256_add_ps(_mm512_castps512_ps256(c), _mm512_extractf32x8_ps(c, 1));
	__m256 h = _mm256_add_ps(_mm512_castps512_ps256(d), _mm512_extractf32x8_ps(d, 1));
	__m128 i = _mm_add_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
	__m128 j = _mm_add_ps(_mm256_castps256_ps128(f), _mm256_extractf128_ps(f, 1));
	__m128 k = _mm_add_ps(_mm256_castps256_ps128(g), _mm256_extractf128_ps(g, 1));
	__m128 l = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));

	_MM_TRANSPOSE4_PS(i, j, k, l);
	return _mm_add_ps(_mm_add_ps(i, k), _mm_add_ps(j, l));
}

#endif
