/* Attention one number at a time: the specification. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attn.h"

enum { VL = 1 };
#define TILE_ACCS 8
#define TILE_VECS 4
#define STEP 1
#define ATTN_OPERANDS "kernels/cpu/attn_f32.h"

#define VF float

static inline VF v_zero(void) { return 0.0f; }
static inline VF v_set1(float x) { return x; }
static inline VF v_load(const float *p) { return *p; }
static inline VF v_load_bf16(const uint16_t *p) { return bf16_to_f32(*p); }
static inline VF v_load_f8(const uint8_t *p) { return isa_e4m3[*p] * 0x1p-8f; } /* as in the other sets */
static inline void v_load_f8x2(VF *y, const uint8_t *p)
{
	y[0] = v_load_f8(p);
	y[1] = v_load_f8(p + 1);
}
static inline void v_store(float *p, VF x) { *p = x; }
static inline VF v_add(VF a, VF b) { return a + b; }
static inline VF v_sub(VF a, VF b) { return a - b; }
static inline VF v_mul(VF a, VF b) { return a * b; }
static inline VF v_fma(VF a, VF b, VF c) { return a * b + c; }
static inline VF v_max(VF a, VF b) { return a > b ? a : b; }
static inline VF v_round_bf16(VF x) { return bf16_to_f32(f32_to_bf16(x)); }
static inline VF v_keep(VF x, const int32_t *cnt, int32_t t, VF y) { return t < *cnt ? x : y; }
static inline VF v_flush(VF y, VF x, VF low) { return x < low ? 0.0f : y; }

static inline VF v_exp2i(VF t)
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
