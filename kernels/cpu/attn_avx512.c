/* Attention with AVX-512, products of float32. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attn.h"
#include "kernels/cpu/attn_v512.h"

#define STEP 1
#define ATTN_OPERANDS "kernels/cpu/attn_f32.h"

static inline vf v_load_bf16(const uint16_t *p)
{
	__m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));

	return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}

static inline vf v_round(vf x)
{
	__m512i u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
	__m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));

	r = _mm512_and_si512(r, _mm512_set1_epi32((int)0xffff0000));
	return _mm512_mask_mov_ps(_mm512_castsi512_ps(r), _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}

#include "kernels/cpu/attn_body.h"

void attn_expanded_avx512(const struct attn_task *t)
{
	attn_expanded(t);
}

void attn_absorbed_avx512(const struct attn_task *t)
{
	attn_absorbed(t);
}
