/* Attention with AVX-512, products of float32. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attn.h"
#include "kernels/cpu/attn_v512.h"

#define STEP 1
#define ATTN_OPERANDS "kernels/cpu/attn_f32.h"

#include "kernels/cpu/attn_body.h"

void attn_expanded_avx512(const struct attn_task *t)
{
	attn_expanded(t);
}

void attn_absorbed_avx512(const struct attn_task *t)
{
	attn_absorbed(t);
}
