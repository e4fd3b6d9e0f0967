/* Attention with AVX-512 and VDPBF16PS, for BF16 arithmetic; float32 arithmetic is that of plain AVX-512. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attn.h"
#include "kernels/cpu/attn_v512.h"

#define STEP 2
#define ATTN_OPERANDS "kernels/cpu/attn_bf16.h"
#include "kernels/cpu/attn_body.h"

void attn_expanded_avx512bf16(const struct attn_task *t)
{
	if (t->shape->round)
		attn_expanded(t);
	else
		attn_expanded_avx512(t);
}

void attn_absorbed_avx512bf16(const struct attn_task *t)
{
	if (t->shape->round && (t->step != ATTN_QUERY || t->shape->kv_b->type == DT_BF16))
		attn_absorbed(t);
	else
		attn_absorbed_avx512(t);
}
