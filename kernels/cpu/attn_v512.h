/* Vectors of 16 float32 for the AVX-512 sets of attention.  See attn_body.h. */
#include <immintrin.h>

#define VL 16
#define TILE_ACCS 16
#define TILE_VECS 4

typedef __m512 vf;

static inline vf v_zero(void) { return _mm512_setzero_ps(); }
static inline vf v_set1(float x) { return _mm512_set1_ps(x); }
static inline vf v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
static inline vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }

static inline vf v_keep(vf x, const int32_t *cnt, int32_t t, vf y)
{
	return _mm512_mask_mov_ps(y, _mm512_cmpgt_epi32_mask(_mm512_loadu_si512(cnt), _mm512_set1_epi32(t)), x);
}

static inline vf v_flush(vf y, vf x, vf low)
{
	return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, low, _CMP_LT_OQ), _mm512_setzero_ps());
}

static inline vf v_exp2i(vf t)
{
	__m512i n = _mm512_slli_epi32(_mm512_castps_si512(t), 23);

	return _mm512_castsi512_ps(_mm512_add_epi32(n, _mm512_set1_epi32(0x3f800000)));
}
