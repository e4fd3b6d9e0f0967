/* Attention one number at a time: the specification. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attn.h"

#define VL 1
#define TILE_ACCS 8
#define TILE_VECS 4
#define STEP 1
#define ATTN_OPERANDS "kernels/cpu/attn_f32.h"

typedef float vf;

static inline vf v_zero(void) { return 0.0f; }
static inline vf v_set1(float x) { return x; }
static inline vf v_load(const float *p) { return *p; }
static inline vf v_load_bf16(const uint16_t *p) { return bf16_to_f32(*p); }
static inline void v_store(float *p, vf x) { *p = x; }
static inline vf v_add(vf a, vf b) { return a + b; }
static inline vf v_sub(vf a, vf b) { return a - b; }
static inline vf v_mul(vf a, vf b) { return a * b; }
static inline vf v_fma(vf a, vf b, vf c) { return a * b + c; }
static inline vf v_max(vf a, vf b) { return a > b ? a : b; }
static inline vf v_round(vf x) { return bf16_to_f32(f32_to_bf16(x)); }
static inline vf v_keep(vf x, const int32_t *cnt, int32_t t, vf y) { return t < *cnt ? x : y; }
static inline vf v_flush(vf y, vf x, vf low) { return x < low ? 0.0f : y; }

static inline vf v_exp2i(vf t)
{
	union { float f; uint32_t u; } v = { .f = t };

	v.u = (v.u << 23) + 0x3f800000u;
	return v.f;
}

#include "kernels/cpu/attn_body.h"

void attn_expanded_scalar(const struct attn_task *t)
{
	attn_expanded(t);
}

void attn_absorbed_scalar(const struct attn_task *t)
{
	attn_absorbed(t);
}
