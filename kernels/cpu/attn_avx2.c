/* Attention with AVX2 and FMA. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/attn.h"

#define VL 8
#define TILE_ACCS 8
#define TILE_VECS 2
#define STEP 1
#define ATTN_OPERANDS "kernels/cpu/attn_f32.h"

typedef __m256 vf;

static inline vf v_zero(void) { return _mm256_setzero_ps(); }
static inline vf v_set1(float x) { return _mm256_set1_ps(x); }
static inline vf v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void v_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
static inline vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }

static inline vf v_load_bf16(const uint16_t *p)
{
	__m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));

	return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}

static inline vf v_round(vf x)
{
	__m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
	__m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));

	r = _mm256_and_si256(r, _mm256_set1_epi32((int)0xffff0000));
	return _mm256_blendv_ps(_mm256_castsi256_ps(r), x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

static inline vf v_keep(vf x, const int32_t *cnt, int32_t t, vf y)
{
	__m256i m = _mm256_cmpgt_epi32(_mm256_loadu_si256((const __m256i *)(const void *)cnt), _mm256_set1_epi32(t));

	return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(m));
}

static inline vf v_flush(vf y, vf x, vf low)
{
	return _mm256_andnot_ps(_mm256_cmp_ps(x, low, _CMP_LT_OQ), y);
}

static inline vf v_exp2i(vf t)
{
	__m256i n = _mm256_slli_epi32(_mm256_castps_si256(t), 23);

	return _mm256_castsi256_ps(_mm256_add_epi32(n, _mm256_set1_epi32(0x3f800000)));
}

#include "kernels/cpu/attn_body.h"

void attn_expanded_avx2(const struct attn_task *t)
{
	attn_expanded(t);
}

void attn_absorbed_avx2(const struct attn_task *t)
{
	attn_absorbed(t);
}
