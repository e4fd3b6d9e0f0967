/* The vector sets, each put together from its files. */
#include "kernels/cpu/isa.h"

#define ROWS(set) \
	.pack_bf16 = pack_bf16_##set, .quant = quant_##set, .round = round_##set, \
	.rmsnorm = rmsnorm_##set, .swiglu = swiglu_##set, .add_scaled = add_scaled_##set, \
	.argmax = argmax_##set, .sum_exp = sum_exp_##set
#define ATTN(set) .attn_expanded = attn_expanded_##set, .attn_absorbed = attn_absorbed_##set

const struct isa isa_avx2 = { .name = "avx2", .gemm = gemm_avx2, ROWS(avx2), ATTN(avx2) };
const struct isa isa_avx512 = { .name = "avx512", .gemm = gemm_avx512, ROWS(avx512), ATTN(avx512) };
const struct isa isa_avx512bf16 = { .name = "avx512bf16", .gemm = gemm_avx512bf16, .widen = widen_avx512bf16,
	ROWS(avx512), ATTN(avx512bf16) };
