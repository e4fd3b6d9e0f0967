/* What attention asks of a vector beyond vec_avx512.h.  See attn_body.h. */
#include "kernels/cpu/vec_avx512.h"

#define TILE_ACCS 16
#define TILE_VECS 4

static inline VF v_keep(VF x, const int32_t *cnt, int32_t t, VF y)
{
	return _mm512_mask_mov_ps(y, _mm512_cmpgt_epi32_mask(_mm512_loadu_si512(cnt), _mm512_set1_epi32(t)), x);
}

static inline VF v_flush(VF y, VF x, VF low)
{
	return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, low, _CMP_LT_OQ), _mm512_setzero_ps());
}

static inline VF v_exp2i(VF t)
{
	__m512i n = _mm512_slli_epi32(_mm512_castps_si512(t), 23);

	return _mm512_castsi512_ps(_mm512_add_epi32(n, _mm512_set1_epi32(0x3f800000)));
}
