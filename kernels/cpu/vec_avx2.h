/* The float32 vector of AVX2 with FMA and F16C, and what the templates ask of it. */
#ifndef DS_KERNELS_CPU_VEC_AVX2_H
#define DS_KERNELS_CPU_VEC_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define VF __m256
enum { VL = 8 };

static inline VF v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void v_store(float *p, VF v) { _mm256_storeu_ps(p, v); }
static inline VF v_zero(void) { return _mm256_setzero_ps(); }
static inline VF v_set1(float f) { return _mm256_set1_ps(f); }
static inline VF v_add(VF a, VF b) { return _mm256_add_ps(a, b); }
static inline VF v_sub(VF a, VF b) { return _mm256_sub_ps(a, b); }
static inline VF v_mul(VF a, VF b) { return _mm256_mul_ps(a, b); }
static inline VF v_div(VF a, VF b) { return _mm256_div_ps(a, b); }
static inline VF v_fma(VF a, VF b, VF c) { return _mm256_fmadd_ps(a, b, c); }
/* b where either is a NaN */
static inline VF v_max(VF a, VF b) { return _mm256_max_ps(a, b); }
static inline VF v_min(VF a, VF b) { return _mm256_min_ps(a, b); }
static inline VF v_abs(VF a) { return _mm256_andnot_ps(v_set1(-0.0f), a); }
static inline VF v_nearest(VF a)
{
	return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline VF v_pow2(__m256i n)
{
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
/* a * 2^n for whole n of magnitude below 250, also into the subnormals and beyond the largest: in two steps */
static inline VF v_ldexp(VF a, VF n)
{
	__m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1);

	return v_mul(v_mul(a, v_pow2(half)), v_pow2(_mm256_sub_epi32(i, half)));
}

/* Largest lane; of NaN lanes any. */
static inline float v_hmax(VF v)
{
	__m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

	m = _mm_max_ps(m, _mm_movehl_ps(m, m));
	return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

static inline int v_any_equal(VF a, VF b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)) != 0; }

/* Half a vector as double. */
#define VD __m256d
static inline VD d_zero(void) { return _mm256_setzero_pd(); }
static inline VD d_low(VF v) { return _mm256_cvtps_pd(_mm256_castps256_ps128(v)); }
static inline VD d_high(VF v) { return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)); }
static inline VD d_add(VD a, VD b) { return _mm256_add_pd(a, b); }
static inline VD d_fma(VD a, VD b, VD c) { return _mm256_fmadd_pd(a, b, c); }
static inline void d_store(double *p, VD v) { _mm256_storeu_pd(p, v); } /* [VL / 2] */

/* bits of the bfloat16 nearest to each lane, ties to even, in the lanes' low halves */
static inline __m256i v_bf16_bits(VF v)
{
	__m256i u = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
	__m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
	__m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));

	r = _mm256_blendv_epi8(r, _mm256_or_si256(u, _mm256_set1_epi32(0x400000)), nan);
	return _mm256_srli_epi32(r, 16);
}
static inline VF v_round_bf16(VF v)
{
	return _mm256_castsi256_ps(_mm256_slli_epi32(v_bf16_bits(v), 16));
}
/* low halves of the lanes, in order */
static inline __m128i v_narrow(__m256i u)
{
	__m256i w = _mm256_packus_epi32(u, u);

	return _mm256_castsi256_si128(_mm256_permute4x64_epi64(w, 0x08));
}
static inline void v_store_bf16(uint16_t *p, VF v)
{
	_mm_storeu_si128((__m128i *)(void *)p, v_narrow(v_bf16_bits(v)));
}
static inline VF v_load_bf16(const uint16_t *p)
{
	return _mm256_castsi256_ps(_mm256_slli_epi32(
		_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)), 16));
}
static inline VF v_load_f16(const uint16_t *p)
{
	return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
/*
 * Values of e4m3 codes divided by 2^8: with the bits moved up by 7 places a code is the float16 of that value, its
 * subnormals included; only the NaN needs help.
 */
static inline VF v_load_f8(const uint8_t *p)
{
	__m128i w = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p));
	__m128i h = _mm_and_si128(_mm_slli_epi16(w, 7), _mm_set1_epi16((short)0xbf80));
	__m128i nan = _mm_cmpeq_epi16(_mm_and_si128(w, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7f));

	return _mm256_cvtph_ps(_mm_or_si128(h, _mm_and_si128(nan, _mm_set1_epi16(0x7e00))));
}
/* The same of 16 codes. */
static inline void v_load_f8x2(VF *y, const uint8_t *p)
{
	__m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
	__m256i h = _mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16((short)0xbf80));
	__m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(w, _mm256_set1_epi16(0x7f)), _mm256_set1_epi16(0x7f));

	h = _mm256_or_si256(h, _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
	y[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(h));
	y[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
}
/* e4m3 codes of the lanes: nearest, ties to even, saturating; 0x7f for a NaN. */
static inline void v_store_f8(uint8_t *p, VF v)
{
	VF a = v_abs(v);
	__m256i u = _mm256_castps_si256(a), odd = _mm256_and_si256(_mm256_srli_epi32(u, 20), _mm256_set1_epi32(1));
	__m256i normal = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7ffff))), 20);
	/* adding 2^14 leaves steps of 2^-9, those of e4m3's subnormals */
	__m256i tiny = _mm256_sub_epi32(_mm256_castps_si256(v_add(a, v_set1(16384.0f))), _mm256_set1_epi32(0x46800000));
	__m256i small = _mm256_castps_si256(_mm256_cmp_ps(a, v_set1(0x1p-6f), _CMP_LT_OQ));
	__m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
	__m256i c = _mm256_min_epi32(_mm256_sub_epi32(normal, _mm256_set1_epi32(120 << 3)), _mm256_set1_epi32(0x7e));
	__m128i w;

	c = _mm256_blendv_epi8(c, tiny, small);
	c = _mm256_or_si256(c, _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(v), 24),
		_mm256_set1_epi32(0x80)));
	c = _mm256_blendv_epi8(c, _mm256_set1_epi32(0x7f), nan);
	w = v_narrow(c);
	_mm_storel_epi64((__m128i *)(void *)p, _mm_packus_epi16(w, w));
}

/* The lanes of four vectors summed, each by the same tree whatever the others hold. */
static inline __m128 v_sum4(VF a, VF b, VF c, VF d)
{
	__m128 i = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
	__m128 j = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
	__m128 k = _mm_add_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1));
	__m128 l = _mm_add_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1));

	_MM_TRANSPOSE4_PS(i, j, k, l);
	return _mm_add_ps(_mm_add_ps(i, k), _mm_add_ps(j, l));
}

#endif
