/* Attention with AVX2 and FMA. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attn.h"
#include "kernels/cpu/vec_avx2.h"

#define TILE_ACCS 8
#define TILE_VECS 2
#define STEP 1
#define ATTN_OPERANDS "kernels/cpu/attn_f32.h"

static inline VF v_keep(VF x, const int32_t *cnt, int32_t t, VF y)
{
	__m256i m = _mm256_cmpgt_epi32(_mm256_loadu_si256((const __m256i *)(const void *)cnt), _mm256_set1_epi32(t));

	return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(m));
}

static inline VF v_flush(VF y, VF x, VF low)
{
	return _mm256_andnot_ps(_mm256_cmp_ps(x, low, _CMP_LT_OQ), y);
}

static inline VF v_exp2i(VF t)
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
